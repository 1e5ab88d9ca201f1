// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/gradient_homes.h"

#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "bindings/python/dlpack.h"
#include "bindings/python/table.h"
#include "bindings/python/unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {

// One shared buffer and its state. It is freed when neither the table of buffers nor a gradient refers to it.
class GradientHome {
 public:
  GradientHome(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~GradientHome() { Api()->free_buffer(data_); }
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;

  enum class State { kVacant, kInhabited, kUnfit };
  State state() const { return state_.load(std::memory_order_acquire); }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Lend the buffer to a gradient. Return false and mark the buffer as unusable once the world has ended or in a forked
  // child, because the memory may not exist there.
  bool MoveIn(hvd_world* world) {
    const bool lent = Api()->lend(world, data_);
    state_.store(lent ? State::kInhabited : State::kUnfit, std::memory_order_relaxed);
    return lent;
  }
  // Take the buffer back. Runs on the thread that destroys the last tensor in it.
  void MoveOut() { state_.store(Api()->take_back(data_) ? State::kVacant : State::kUnfit, std::memory_order_release); }

 private:
  void* const data_;
  const size_t bytes_;
  std::atomic<State> state_{State::kVacant};
};

namespace {

nb::object Interned(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

void LeaveHome(void* context) {
  std::unique_ptr<std::shared_ptr<GradientHome>> key(static_cast<std::shared_ptr<GradientHome>*>(context));
  (*key)->MoveOut();
}

}  // namespace

Onlookers::Onlookers(nb::callable storage_count)
    : storage_count_(std::move(storage_count)),
      hooks_(Interned("_post_accumulate_grad_hooks")),
      requires_grad_(Interned("requires_grad")),
      version_(Interned("_version")),
      untyped_storage_(Interned("untyped_storage")),
      address_(Interned("_cdata")) {}

void Onlookers::Learn(nb::handle parameter) {
  const nb::object gradient = parameter.attr("grad");
  references_ = Py_REFCNT(gradient.ptr());
  storages_ = Storages(gradient);
}

int64_t Onlookers::Storages(nb::handle gradient) const {
  return nb::cast<int64_t>(storage_count_(gradient.attr(untyped_storage_)().attr(address_)));
}

// Return true if this backward pass created the gradient, instead of adding to an existing one, and our hook is the
// only hook that can have seen it since.
bool Onlookers::IsFresh(nb::handle parameter, nb::handle gradient) const {
  const nb::object hooks = parameter.attr(hooks_);
  if (!PyDict_Check(hooks.ptr()) || PyDict_Size(hooks.ptr()) != 1) return false;
  const nb::object version = nb::steal(PyObject_GetAttr(gradient.ptr(), version_.ptr()));
  if (!version) PyErr_Clear();  // a tensor created in inference mode has no version
  return version && PyLong_AsLong(version.ptr()) == 0;
}

bool Onlookers::AreNone(nb::handle parameter, nb::handle gradient) const {
  if (Py_REFCNT(gradient.ptr()) != references_) return false;
  // Replacing it would lose the graph that create_graph=True has attached to it.
  if (nb::object(gradient.attr(requires_grad_)).ptr() != Py_False) return false;
  // Another tensor may share the gradient's memory, for example the one from which autograd created the gradient.
  return IsFresh(parameter, gradient) && Storages(gradient) <= storages_;
}

GradientHomes::GradientHomes(nb::object reader, nb::object maker, nb::object onlookers, const std::vector<int>& dtypes,
                             uint64_t least)
    : reader_object_(std::move(reader)),
      maker_object_(std::move(maker)),
      onlookers_object_(std::move(onlookers)),
      reader_(nb::cast<const TensorReader*>(reader_object_)),
      maker_(nb::cast<const TensorMaker*>(maker_object_)),
      onlookers_(nb::cast<const Onlookers*>(onlookers_object_)),
      least_(least),
      grad_(Interned("grad")) {
  for (const int dtype : dtypes) movable_ |= uint64_t{1} << dtype;
}

void GradientHomes::MoveTo(nb::handle world) {
  if (world_.is(world)) return;
  homes_.clear();
  world_ = nb::borrow(world);
  address_ = reinterpret_cast<hvd_world*>(nb::cast<uintptr_t>(world.attr("address")));
}

std::shared_ptr<GradientHome> GradientHomes::VacantHome(uint32_t number, size_t bytes) {
  if (homes_.size() <= number) homes_.resize(number + 1);
  std::shared_ptr<GradientHome> home = std::exchange(homes_[number], nullptr);
  if (home && home->state() == GradientHome::State::kInhabited) {
    homes_[number] = std::move(home);
    return nullptr;
  }
  if (!home || home->state() == GradientHome::State::kUnfit || home->bytes() != bytes) {
    home = nullptr;
    // keeps the world alive, because other threads may change this object while the GIL is released
    const nb::object owner = world_;
    hvd_world* const world = address_;
    Unlocked unlocked;
    if (void* const data = Api()->allocate_lendable(world, bytes)) home = std::make_shared<GradientHome>(data, bytes);
  }
  return home;
}

void GradientHomes::Adopt(uint32_t number, nb::handle parameter) {
  PlainTensor plain;
  const nb::object gradient = parameter.attr(grad_);
  if (!world_ || !reader_->Read(gradient.ptr(), &plain) || !(movable_ >> plain.dtype_id & 1)) return;
  size_t bytes = dlpack::TypeOf(plain.dtype_id).bits / 8u;
  for (int i = 0; i < plain.ndim; ++i) bytes *= static_cast<size_t>(plain.shape[i]);
  if (bytes < least_ || (number < homes_.size() && homes_[number] && homes_[number]->data() == plain.data)) return;
  if (!onlookers_->AreNone(parameter, gradient)) return;
  const std::shared_ptr<GradientHome> home = VacantHome(number, bytes);
  if (!home || !home->MoveIn(address_)) return;
  if (number < homes_.size()) homes_[number] = home;
  {
    Unlocked unlocked;
    std::memcpy(home->data(), plain.data, bytes);
  }
  auto key = std::make_unique<std::shared_ptr<GradientHome>>(home);
  nb::setattr(parameter, grad_, maker_->Make(home->data(), plain, LeaveHome, key.release()));
}

void BindGradientHomes(nb::module_& module) {
  nb::class_<Onlookers>(module, "Onlookers")
      .def(nb::init<nb::callable>(), "storage_count"_a)
      .def("learn", &Onlookers::Learn, "parameter"_a);
  nb::class_<GradientHomes>(module, "GradientHomes")
      .def(nb::init<nb::object, nb::object, nb::object, const std::vector<int>&, uint64_t>(), "reader"_a, "maker"_a,
           "onlookers"_a, "dtypes"_a, "least"_a)
      .def("move_to", &GradientHomes::MoveTo, "world"_a);
}

}  // namespace hvd_python
