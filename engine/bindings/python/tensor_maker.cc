// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tensor_maker.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/python/dlpack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// One of DLPack's two structs with the data that it points to.
template <typename M>
struct Owned {
  M managed{};
  std::vector<int64_t> shape, strides;
  void (*release)(void*);
  void* context;

  Owned(void* data, const PlainTensor& like, void (*release_)(void*), void* context_)
      : shape(like.shape, like.shape + like.ndim), strides(shape.size()), release(release_), context(context_) {
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = like.strides ? like.strides[i] : stride;
      stride *= std::max<int64_t>(shape[i], 1);
    }
    managed.tensor.data = data;
    managed.tensor.device = {dlpack::kHostMemory, 0};
    managed.tensor.ndim = like.ndim;
    managed.tensor.dtype = dlpack::TypeOf(like.dtype_id);
    managed.tensor.shape = shape.data();
    managed.tensor.strides = strides.data();
    managed.context = this;
    managed.deleter = [](M* self) { delete static_cast<Owned*>(self->context); };
  }
  ~Owned() { release(context); }
};

// name of the capsule before torch takes the tensor; torch then renames the capsule
constexpr const char* kFresh = "dltensor";

void DropUnused(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kFresh)) return;
  auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, kFresh));
  managed->deleter(managed);
}

}  // namespace

TensorMaker::TensorMaker(nb::handle table, nb::callable from_dlpack) : from_dlpack_(std::move(from_dlpack)) {
  if (const dlpack::ExchangeTable* found = dlpack::TableIn(table)) to_object_ = found->managed_to_object;
}

nb::object TensorMaker::Make(void* data, const PlainTensor& like, void (*release)(void*), void* context) const {
  if (to_object_) {
    auto owned = std::make_unique<Owned<dlpack::ManagedVersioned>>(data, like, release, context);
    owned->managed.version = {dlpack::kMajorVersion, 0};
    void* object = nullptr;
    if (to_object_(&owned->managed, &object)) throw nb::python_error();
    owned.release();  // torch owns it now
    return nb::steal(static_cast<PyObject*>(object));
  }
  auto owned = std::make_unique<Owned<dlpack::Managed>>(data, like, release, context);
  const nb::object capsule = nb::steal(PyCapsule_New(&owned->managed, kFresh, DropUnused));
  if (!capsule) throw nb::python_error();
  owned.release();  // the capsule owns it now
  return from_dlpack_(capsule);
}

void BindTensorMaker(nb::module_& module) {
  nb::class_<TensorMaker>(module, "TensorMaker")
      .def(nb::init<nb::handle, nb::callable>(), "table"_a.none(), "from_dlpack"_a);
}

}  // namespace hvd_python
