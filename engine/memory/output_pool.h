// SPDX-License-Identifier: Apache-2.0
// Memory for outputs that the engine allocates (allgather, alltoall). Fresh pages from the kernel cost as much as
// filling them, so a few large buffers that callers have freed are kept for the next outputs of about their size. An
// output that comes again and again moves to the arena, where the peers write into it (collectives/push); to its caller
// it is memory like any other, also across a fork.
#pragma once

#include <cstddef>
#include <memory>

#include "memory/arena.h"

namespace hvd {

// nullptr if there is no memory. On a cache line of its own; never of size 0. With an `arena` it may lie there.
void* AllocateOutput(size_t bytes, const std::shared_ptr<Arena>& arena = nullptr);
// In the arena for certain, or nullptr; for memory that callers get again and again.
void* AllocateSharedOutput(size_t bytes, const std::shared_ptr<Arena>& arena);
// Nobody but the caller touches the output from here on.
void HandOverOutput(void* data);
void FreeOutput(void* data);  // nullptr is harmless; at any time, also after the last world has ended
// Hands it over once more; false if it is no longer usable, because its world has ended or is in another process.
bool LendOutput(void* data);
// The caller is done with it. False if it is no longer usable, because it is not shared any more: free it.
bool TakeBackOutput(void* data);
// Instead of FreeOutput where a peer may still be writing into it.
void AbandonOutput(void* data);
// Before the arena (which may be null) closes: what callers hold is theirs alone, what is kept goes back.
void LeaveOutputsToCallers(const Arena* arena);

}  // namespace hvd
