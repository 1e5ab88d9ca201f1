// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/plain_tensors.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "bindings/python/dlpack.h"
#include "bindings/python/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

constexpr size_t kAlignment = 64;  // alignment that torch uses

// Keep a tensor's memory valid while the tensor is created, even if that fails, because the engine may be writing
// there.
struct Attempt {
  Attempt() { running = true; }
  ~Attempt() { running = false; }
  static void FreeAfterwards(void* memory) {
    if (!running) std::free(memory);
  }
  static thread_local bool running;
};
thread_local bool Attempt::running = false;

nb::object Checked(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

PlainTensors::PlainTensors(nb::object reader, nb::object maker, const nb::dict& dtypes, nb::callable is_grad_enabled)
    : reader_object_(std::move(reader)),
      maker_object_(std::move(maker)),
      reader_(nb::cast<const TensorReader*>(reader_object_)),
      maker_(nb::cast<const TensorMaker*>(maker_object_)),
      is_grad_enabled_(std::move(is_grad_enabled)),
      requires_grad_(nb::steal(PyUnicode_InternFromString("requires_grad"))) {
  for (auto [dtype, id] : dtypes) {
    const auto number = nb::cast<size_t>(id);
    makeable_.resize(std::max(makeable_.size(), number + 1));
    makeable_[number] = Probe(static_cast<int>(number), dtype);
  }
}

// Return true if torch can create tensors of this dtype, because DLPack in older versions of torch lacks some types.
bool PlainTensors::Probe(int dtype_id, nb::handle dtype) const {
  try {
    const int64_t one = 1;
    NewArray probe = Allocate(dtype_id, 1, &one);
    return Make(&probe, dtype_id, 1, &one).attr("dtype").is(dtype);
  } catch (nb::python_error&) {
    return false;
  }
}

bool PlainTensors::Read(PyObject* tensor, PlainArray* plain) const {
  return reader_->Read(tensor, plain) && plain->ndim <= kMaxDimensions;
}

bool PlainTensors::IsRecorded(nb::handle tensor) const {
  const nb::object required = Checked(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
  return required.ptr() != Py_False && nb::cast<bool>(is_grad_enabled_());
}

bool PlainTensors::MayCountRows(int dtype_id) const { return dtype_id == HVD_INT32; }

// Use malloc instead of torch, which takes several times as long: glibc does not cache aligned memory, and torch's
// dispatcher runs much code.
NewArray PlainTensors::Allocate(int dtype_id, int ndim, const int64_t* shape) const {
  size_t bytes = dlpack::TypeOf(dtype_id).bits / 8u;
  for (int i = 0; i < ndim; ++i) bytes *= static_cast<size_t>(shape[i]);
  NewArray allocated;
  allocated.memory.reset(std::malloc(bytes + kAlignment));
  if (!allocated.memory) throw std::bad_alloc();
  const auto begin = reinterpret_cast<uintptr_t>(allocated.memory.get());
  allocated.data = reinterpret_cast<void*>((begin / kAlignment + 1) * kAlignment);
  return allocated;
}

nb::object PlainTensors::Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const {
  const Attempt attempt;
  void* const memory = allocated->memory.get();
  nb::object made =
      maker_->Make(allocated->data, {nullptr, ndim, shape, dtype_id, nullptr, {}}, Attempt::FreeAfterwards, memory);
  allocated->memory.release();  // the tensor owns it now
  return made;
}

nb::object PlainTensors::Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const {
  return maker_->Make(data, {data, ndim, shape, dtype_id, nullptr, {}}, Api()->free_buffer, data);
}

void BindPlainTensors(nb::module_& module) {
  nb::class_<PlainTensors, PlainArrays>(module, "PlainTensors")
      .def(nb::init<nb::object, nb::object, const nb::dict&, nb::callable>(), "reader"_a, "maker"_a, "dtypes"_a,
           "is_grad_enabled"_a);
}

}  // namespace hvd_python
