// SPDX-License-Identifier: Apache-2.0
// Turns an agreed batch into the machine (collective state machine) that runs it: chooses the algorithm, the lanes and
// the memory.
#pragma once

#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Return the reduction of the elements. An average becomes a sum with a divisor or postscale.
Reduction ReductionOf(const Request& request, size_t members);

// Return memory for a result whose size is known only after negotiation. The handle owns memory that the engine
// allocates until the caller takes it; it comes from `arena` if there is one and that pays.
std::byte* OutputOf(Operation& operation, int64_t rows, const std::shared_ptr<Arena>& arena);

// Make batch.machine. `batch.operations[i]` is this rank's tensor for entries[i], or null if the rank has joined and
// contributes zeros. Allocates outputs that the caller left to the engine; throws std::bad_alloc if memory runs out.
Status Prepare(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);
// Make batch.machine for tensors in host memory. For staged tensors of a GPU these are copies.
Status PrepareOnHostMemory(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

}  // namespace hvd
