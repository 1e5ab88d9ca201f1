// SPDX-License-Identifier: Apache-2.0
// torch's tensors over memory of ours, without torch's headers: through DLPack's table of functions, or by a capsule
// where torch is too old to have one.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/python/tensor_reader.h"

namespace hvd_python {

class TensorMaker {
 public:
  // `table`: torch.Tensor's capsule with DLPack's functions, or None; `from_dlpack`: torch's function for capsules.
  TensorMaker(nanobind::handle table, nanobind::callable from_dlpack);

  // A tensor like another one, but for its memory. `release` is called once nobody looks at that any more, with or
  // without the GIL; also if this throws.
  nanobind::object Make(void* data, const PlainTensor& like, void (*release)(void* context), void* context) const;

 private:
  const nanobind::callable from_dlpack_;
  int (*to_object_)(void* managed, void** object) = nullptr;
};

void BindTensorMaker(nanobind::module_& module);

}  // namespace hvd_python
