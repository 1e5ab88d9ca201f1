// SPDX-License-Identifier: Apache-2.0
// torch's tensors without torch's headers: through the table of functions that DLPack defines for this, or by their
// attributes where torch is too old to have one.
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

  // False for what needs a closer look: not a plain tensor, another memory or layout, an unknown dtype, a tensor with
  // the negative bit. Other threads may run meanwhile, because torch releases the GIL to look at that bit.
  bool Read(PyObject* tensor, PlainTensor* plain) const;

  // The tensor's storage: it keeps the memory when the tensor is given another one, though not when it is resized.
  nanobind::object Hold(nanobind::handle tensor) const { return tensor.attr(untyped_storage_)(); }
  // Whether a tensor has this many elements, at this address.
  bool LiesAt(nanobind::handle tensor, const void* data, int64_t elements) const;

 private:
  bool ReadByTable(PyObject* tensor, PlainTensor* plain) const;
  bool ReadByAttributes(nanobind::handle tensor, PlainTensor* plain) const;

  const nanobind::object tensor_type_, strided_;
  const nanobind::object is_negated_;       // a method of the type
  const nanobind::object untyped_storage_;  // the name
  std::vector<std::pair<nanobind::object, int>> dtypes_;
  int (*describe_)(void* tensor, void* description) = nullptr;  // fills a DLTensor
};

void BindTensorReader(nanobind::module_& module);

}  // namespace hvd_python
