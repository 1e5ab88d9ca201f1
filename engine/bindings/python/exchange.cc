// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/exchange.h"

#include <hvd/engine.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/members.h"
#include "bindings/python/table.h"
#include "bindings/python/unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// Time for which a thread that waits for several exchanges waits for the first one before it polls the others.
constexpr int kSliceMs = 1;

// One exchange, which the constructor starts. All methods need the GIL.
class Exchange {
 public:
  Exchange(const Member& member, const std::string& name, nb::bytes message)
      : owner_(member.owner), world_(member.world) {
    const auto* const first = reinterpret_cast<const uint8_t*>(message.c_str());
    bytes_ = std::make_unique<std::vector<uint8_t>>(first, first + message.size());
    const auto count = static_cast<int64_t>(bytes_->size());
    hvd_op op{};
    op.size = sizeof op;
    op.kind = HVD_ALLREDUCE;
    op.dtype = HVD_UINT8;
    op.reduce_op = HVD_MAX;
    op.root = op.device = -1;
    op.prescale = op.postscale = 1;
    op.name = name.c_str();
    op.shape = &count;
    op.ndim = 1;
    op.input = op.output = bytes_->data();
    hvd_status status;
    handle_ = Api()->submit(world_, member.set_id, &op, 1, nullptr, HVD_WILL_WAIT, nullptr, nullptr, &status);
    if (!handle_) Raise(status);
  }
  ~Exchange() {
    if (handle_) bytes_.release();  // keep the memory: the caller gave up waiting, but the engine still writes to it
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Wait for the other ranks and return the result. Call only once.
  nb::bytes Finish() {
    hvd_status status;
    const int32_t code = FinishUnlocked(world_, handle_, is_over_, &status);
    handle_ = 0;
    if (code != HVD_OK) Raise(status);
    return nb::bytes(bytes_->data(), bytes_->size());
  }

  // Wait until any of the exchanges is done, and return its index in the list. All must belong to one world.
  static size_t WaitForAny(const std::vector<Exchange*>& exchanges) {
    if (exchanges.size() == 1) return 0;  // Finish() waits for it
    const Exchange& first = *exchanges.at(0);
    Blocked blocked(first.world_);
    for (int waited_ms = 0;; waited_ms += kSliceMs) {
      for (size_t i = 0; i < exchanges.size(); ++i) {
        if (Api()->poll(first.world_, exchanges[i]->handle_) == 0) continue;
        exchanges[i]->is_over_ = true;
        return i;
      }
      if (waited_ms >= kSignalPeriodMs) {
        waited_ms = 0;
        if (PyErr_CheckSignals()) throw nb::python_error();
        blocked.Tell(first.handle_);
      }
      hvd_status status;
      const Unlocked unlocked;
      Api()->wait(first.world_, first.handle_, kSliceMs, &status);
    }
  }

 private:
  const nb::object owner_;  // keeps the world alive
  hvd_world* const world_;
  std::unique_ptr<std::vector<uint8_t>> bytes_;
  int64_t handle_ = 0;    // 0: finished
  bool is_over_ = false;  // true once WaitForAny has seen that it is done
};

}  // namespace

void BindExchange(nb::module_& module) {
  nb::class_<Exchange>(module, "Exchange")
      .def(nb::init<const Member&, const std::string&, nb::bytes>(), "member"_a, "name"_a, "message"_a)
      .def("finish", &Exchange::Finish)
      .def_static("wait_for_any", &Exchange::WaitForAny, "exchanges"_a);
}

}  // namespace hvd_python
