// SPDX-License-Identifier: Apache-2.0
// Memory for outputs that the engine allocates (allgather, alltoall). Fresh pages from the kernel cost as much as
// filling them, so a few large buffers that callers have freed are kept for the next outputs of about their size.
#pragma once

#include <cstddef>

namespace hvd {

// nullptr if there is no memory. On a cache line of its own; never of size 0.
void* AllocateOutput(size_t bytes);
void FreeOutput(void* data);  // nullptr is harmless; at any time, also after the last world has ended
void TrimOutputs();           // gives back what is kept

}  // namespace hvd
