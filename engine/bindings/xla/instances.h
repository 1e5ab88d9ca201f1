// SPDX-License-Identifier: Apache-2.0
// Call sites of collectives in compiled programs. A jitted function that is called twice in a program is compiled once
// and inlined twice, under one name. Ranks that run both copies at once must still distinguish them.
#pragma once

#include <atomic>

#include "bindings/xla/frame.h"

namespace hvd::xla {

struct Program {
  std::atomic<int> instances{0};
};

struct Instance {
  Program* program;
  // Number among the call sites of one name in one program, in XLA's order. Always 0 for a program with a negative id
  // (TensorFlow's), because it is compiled again for other shapes.
  int number;
};

// Record a call site; XLA calls this once for each when it instantiates an executable.
XLA_FFI_Error* Instantiate(const Frame& frame);
// Return the call site of a call, or nullptr if this version of XLA does not support that.
const Instance* InstanceOf(const Frame& frame);

}  // namespace hvd::xla
