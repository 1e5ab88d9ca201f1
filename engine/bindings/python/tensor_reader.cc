// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tensor_reader.h"

#include "bindings/python/dlpack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

bool IsContiguous(const dlpack::Tensor& tensor) {
  if (!tensor.strides) return true;
  int64_t expected = 1;
  bool contiguous = true;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) contiguous = false;
    expected *= tensor.shape[i];
  }
  return contiguous;
}

}  // namespace

TensorReader::TensorReader(nb::handle tensor_type, const nb::dict& dtypes, nb::handle strided, nb::handle table)
    : tensor_type_(nb::borrow(tensor_type)),
      strided_(nb::borrow(strided)),
      is_negated_(nb::borrow(tensor_type).attr("is_neg")),
      untyped_storage_(nb::steal(PyUnicode_InternFromString("untyped_storage"))) {
  for (auto [dtype, id] : dtypes) dtypes_.emplace_back(nb::borrow(dtype), nb::cast<int>(id));
  if (const dlpack::ExchangeTable* found = dlpack::TableIn(table)) describe_ = found->describe;
}

bool TensorReader::Read(PyObject* tensor, PlainTensor* plain) const {
  // Subclasses may store their elements anywhere.
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != tensor_type_.ptr()) return false;
  if (!(describe_ ? ReadByTable(tensor, plain) : ReadByAttributes(tensor, plain))) return false;
  // The memory of a tensor with the negative bit holds the negated values, and DLPack does not report the bit.
  return !is_negated_(nb::handle(tensor)).is(nb::handle(Py_True));
}

bool TensorReader::ReadByTable(PyObject* tensor, PlainTensor* plain) const {
  dlpack::Tensor found;
  if (describe_(tensor, &found) != 0) {
    PyErr_Clear();  // DLPack refuses, for example, sparse tensors
    return false;
  }
  if (found.device.device_type != dlpack::kHostMemory || !IsContiguous(found)) return false;
  plain->data = static_cast<char*>(found.data) + found.byte_offset;
  plain->ndim = found.ndim;
  plain->shape = found.shape;
  plain->strides = found.strides;
  plain->dtype_id = dlpack::IdOf(found.dtype);
  return plain->dtype_id >= 0;
}

bool TensorReader::ReadByAttributes(nb::handle tensor, PlainTensor* plain) const {
  if (!nb::object(tensor.attr("layout")).is(strided_) || !nb::cast<bool>(tensor.attr("is_cpu"))) return false;
  if (!nb::cast<bool>(tensor.attr("is_contiguous")())) return false;
  const nb::object dtype = tensor.attr("dtype");
  plain->dtype_id = -1;
  for (const auto& [known, id] : dtypes_) {
    if (dtype.is(known)) plain->dtype_id = id;
  }
  plain->data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  plain->copied.clear();
  for (nb::handle extent : tensor.attr("shape")) plain->copied.push_back(nb::cast<int64_t>(extent));
  plain->ndim = static_cast<int>(plain->copied.size());
  for (nb::handle stride : nb::object(tensor.attr("stride")())) plain->copied.push_back(nb::cast<int64_t>(stride));
  plain->shape = plain->copied.data();
  plain->strides = plain->shape + plain->ndim;
  return plain->dtype_id >= 0;
}

bool TensorReader::LiesAt(nb::handle tensor, const void* data, int64_t elements) const {
  PlainTensor now;
  if (Read(tensor.ptr(), &now)) return ElementsOf(now.ndim, now.shape) == elements && (!elements || now.data == data);
  // Read refuses, for example, a transposed tensor, although its memory has not moved.
  return nb::cast<int64_t>(tensor.attr("numel")()) == elements &&
         (!elements || nb::cast<uintptr_t>(tensor.attr("data_ptr")()) == reinterpret_cast<uintptr_t>(data));
}

void BindTensorReader(nb::module_& module) {
  nb::class_<TensorReader>(module, "TensorReader")
      .def(nb::init<nb::handle, const nb::dict&, nb::handle, nb::handle>(), "tensor_type"_a, "dtypes"_a, "strided"_a,
           "table"_a.none())
      .def(
          "read",
          [](const TensorReader& self, nb::handle tensor) -> nb::object {
            PlainTensor plain;
            if (!self.Read(tensor.ptr(), &plain)) return nb::none();
            nb::list shape;
            for (int i = 0; i < plain.ndim; ++i) shape.append(plain.shape[i]);
            return nb::make_tuple(reinterpret_cast<uintptr_t>(plain.data), nb::tuple(shape), plain.dtype_id);
          },
          "tensor"_a.none());
}

}  // namespace hvd_python
