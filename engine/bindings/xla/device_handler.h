// SPDX-License-Identifier: Apache-2.0
// Collectives in programs that run on a GPU. They are put on the program's own stream, in its order.
#pragma once

#include "bindings/xla/frame.h"

namespace hvd::xla {

// Execute a collective. Returns when the required work of all ranks is launched; XLA then launches the work that uses
// the result.
XLA_FFI_Error* ExecuteOnDevice(Frame& frame);

}  // namespace hvd::xla
