// SPDX-License-Identifier: Apache-2.0
// Memory for outputs that the engine allocates (allgather, alltoall). New pages from the kernel cost as much time as
// filling them, so a few large buffers that callers have freed are kept for later outputs of similar size. An output
// that is needed repeatedly moves to the arena, where peers write into it (collectives/push). For its caller it stays
// ordinary memory, also across a fork.
#pragma once

#include <cstddef>
#include <memory>

#include "memory/arena.h"

namespace hvd {

// Allocate an output on a cache line of its own, or return nullptr if there is no memory. It may be in `arena`. A size
// of 0 is allowed.
void* AllocateOutput(size_t bytes, const std::shared_ptr<Arena>& arena = nullptr);
// Allocate an output in the arena, for memory that callers get repeatedly. Return nullptr if that is impossible.
void* AllocateSharedOutput(size_t bytes, const std::shared_ptr<Arena>& arena);
// Mark an output as passed to the caller. Only the caller uses it from now on.
void HandOverOutput(void* data);
void FreeOutput(void* data);  // ignores nullptr; may be called at any time, even after the last world has ended
// Pass an output to the caller again. Return false if it is unusable, because its world has ended or is in another
// process.
bool LendOutput(void* data);
// Take an output back from the caller. Return false if it is no longer shared: it must then be freed.
bool TakeBackOutput(void* data);
// Give up an output, instead of FreeOutput, if a peer may still be writing into it.
void AbandonOutput(void* data);
// Make outputs that callers hold private and free those that are kept. Call before the arena closes; `arena` may be
// null.
void LeaveOutputsToCallers(const Arena* arena);

}  // namespace hvd
