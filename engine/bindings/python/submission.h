// SPDX-License-Identifier: Apache-2.0
// Arguments of World.submit: the call, which all tensors of an operation share, and the location of each tensor.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace hvd_python {

// The operation to perform, without its tensors.
struct EngineCall {
  int kind;
  int reduce_op;
  double prescale;
  double postscale;
  int root;
  int wire_dtype;
  bool will_wait;
  bool prompt;

  uint32_t flags() const {
    return static_cast<uint32_t>(will_wait ? HVD_WILL_WAIT : 0) | static_cast<uint32_t>(prompt ? HVD_PROMPT : 0);
  }
};

// One tensor: its elements, the addresses of input and output, and the GPU and stream it belongs to.
struct TensorLocation {
  int dtype;
  std::vector<int64_t> shape;
  uintptr_t input;
  uintptr_t output;
  int device;
  uint64_t stream;
};

// Return the engine's description of the operation. It refers to the name and to the tensor's shape.
hvd_op Describe(const EngineCall& call, const TensorLocation& tensor, const char* name);

void BindSubmission(nanobind::module_& module);

}  // namespace hvd_python
