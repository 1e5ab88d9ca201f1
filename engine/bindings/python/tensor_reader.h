// SPDX-License-Identifier: Apache-2.0
// Reads tensors of torch without torch's headers: through DLPack's function table, or through attributes for versions
// of torch without the table.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/python/plain_arrays.h"

namespace hvd_python {

using PlainTensor = PlainArray;

class TensorReader {
 public:
  // `table`: torch.Tensor's capsule with DLPack's functions, or None.
  TensorReader(nanobind::handle tensor_type, const nanobind::dict& dtypes, nanobind::handle strided,
               nanobind::handle table);

  // Return false if Python must handle the object: a subclass, memory on a device, another layout, an unknown dtype, or
  // a tensor with the negative bit. Other threads may run meanwhile, because torch releases the GIL to check that bit.
  bool Read(PyObject* tensor, PlainTensor* plain) const;

  // Return the tensor's storage. It keeps the memory if the tensor is given another storage, but not if it is resized.
  nanobind::object Hold(nanobind::handle tensor) const { return tensor.attr(untyped_storage_)(); }
  // Return true if a tensor has this many elements at this address.
  bool LiesAt(nanobind::handle tensor, const void* data, int64_t elements) const;

 private:
  bool ReadByTable(PyObject* tensor, PlainTensor* plain) const;
  bool ReadByAttributes(nanobind::handle tensor, PlainTensor* plain) const;

  const nanobind::object tensor_type_, strided_;
  const nanobind::object is_negated_;       // method is_neg of the tensor type
  const nanobind::object untyped_storage_;  // attribute name
  std::vector<std::pair<nanobind::object, int>> dtypes_;
  int (*describe_)(void* tensor, void* description) = nullptr;  // fills in a DLTensor
};

void BindTensorReader(nanobind::module_& module);

}  // namespace hvd_python
