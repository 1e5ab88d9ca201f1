// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arrivals.h"

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

class Arrivals {
 public:
  Arrivals(uint64_t limit, nb::callable notify) : limit_(limit), notify_(std::move(notify)) {}

  void Add(uint32_t number, uint64_t bytes) {
    bool tell;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tell = numbers_.empty() || bytes_ + bytes >= limit_;
      numbers_.push_back(number);
      bytes_ += bytes;
    }
    if (tell) notify_();
  }

  std::vector<uint32_t> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_ = 0;
    return std::exchange(numbers_, {});
  }

  bool Empty() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return numbers_.empty();
  }
  bool Full() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_ >= limit_;
  }

 private:
  // Several threads may tell of arrivals: autograd has one for each device.
  mutable std::mutex mutex_;
  const uint64_t limit_;
  uint64_t bytes_ = 0;
  std::vector<uint32_t> numbers_;
  const nb::callable notify_;
};

// Holds no gradient and no tensor: the garbage collector cannot look inside, and a cycle through here would stay.
nb::object Hook(nb::object self, uint32_t number, uint64_t bytes) {
  Arrivals* const arrivals = nb::cast<Arrivals*>(self);
  return nb::cpp_function([self, arrivals, number, bytes](nb::handle) { arrivals->Add(number, bytes); });
}

}  // namespace

void BindArrivals(nb::module_& module) {
  nb::class_<Arrivals>(module, "Arrivals")
      .def(nb::init<uint64_t, nb::callable>(), "limit"_a, "notify"_a)
      .def("hook", &Hook, "number"_a, "nbytes"_a)
      .def("take", &Arrivals::Take)
      .def_prop_ro("full", &Arrivals::Full)
      .def("__bool__", [](const Arrivals& self) { return !self.Empty(); });
}

}  // namespace hvd_python
