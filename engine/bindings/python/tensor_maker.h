// SPDX-License-Identifier: Apache-2.0
// Creates tensors of torch over our memory without torch's headers: through DLPack's function table, or through a
// capsule for versions of torch without the table.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/python/tensor_reader.h"

namespace hvd_python {

class TensorMaker {
 public:
  // `table`: torch.Tensor's capsule with DLPack's functions, or None; `from_dlpack`: torch's function for capsules.
  TensorMaker(nanobind::handle table, nanobind::callable from_dlpack);

  // Create a tensor with the layout of `like` over `data`. `release` is called when nothing refers to the memory any
  // more, with or without the GIL, and also if this throws.
  nanobind::object Make(void* data, const PlainTensor& like, void (*release)(void* context), void* context) const;

 private:
  const nanobind::callable from_dlpack_;
  int (*to_object_)(void* managed, void** object) = nullptr;
};

void BindTensorMaker(nanobind::module_& module);

}  // namespace hvd_python
