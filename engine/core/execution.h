// SPDX-License-Identifier: Apache-2.0
// Turns an agreed batch into the machine that runs it: which algorithm, over which lanes, on whose memory.
#pragma once

#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// What is done to the elements, with an average's division in its place.
Reduction ReductionOf(const Request& request, size_t members);

// Memory for a result whose size only the agreement told; owned by the handle until the caller takes it. In the arena
// if there is one and that pays.
std::byte* OutputOf(Operation& operation, int64_t rows, const std::shared_ptr<Arena>& arena);

// `batch.operations[i]` is this rank's tensor for entries[i], or null where the rank has joined (it then contributes
// zeros). Fills batch.machine. Allocates outputs that the caller left to the engine; throws std::bad_alloc without
// memory.
Status Prepare(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);
// The same for tensors that lie in the memory of the host, wherever the callers' own are.
Status PrepareOnHostMemory(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

}  // namespace hvd
