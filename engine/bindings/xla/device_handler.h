// SPDX-License-Identifier: Apache-2.0
// Collectives in programs that run on a GPU: put on the program's own stream, in its order.
#pragma once

#include "bindings/xla/frame.h"

namespace hvd::xla {

// Returns when the work of all ranks that it needs has been launched: XLA then launches what uses the result.
XLA_FFI_Error* ExecuteOnDevice(Frame& frame);

}  // namespace hvd::xla
