// SPDX-License-Identifier: Apache-2.0
// The places in compiled programs where a collective stands. A jitted function that is called twice in a program is
// compiled once and inlined twice, under one name; ranks that run both copies at once must still tell them apart.
#pragma once

#include <atomic>

#include "bindings/xla/frame.h"

namespace hvd::xla {

struct Program {
  std::atomic<int> instances{0};
};

struct Instance {
  Program* program;
  // Among those of one name in one program, in the order in which XLA lays them out. Always 0 for a program with a
  // negative number, which is compiled again for other shapes (TensorFlow's).
  int number;
};

// At the instantiation of an executable, once for each place.
XLA_FFI_Error* Instantiate(const Frame& frame);
// The place that a call comes from; nullptr if this version of XLA does not tell.
const Instance* InstanceOf(const Frame& frame);

}  // namespace hvd::xla
