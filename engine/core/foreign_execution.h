// SPDX-License-Identifier: Apache-2.0
// Runs an agreed batch as jobs for an external library (see collectives/foreign.h).
#pragma once

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Make the batch's machine from jobs. Return false, on all members, if the engine must run the batch itself: Adasum,
// reductions that must be deterministic, min and max of floats (which must keep NaN), float8, and more bytes than other
// libraries can count.
bool PrepareForeign(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

// Queue a job that creates or frees the external library's group for a process set. All ranks do this in the order of
// the global log, so the members may wait for each other in it.
void PutGroupJob(ForeignJobs* jobs, OpKind kind, uint32_t epoch, const std::vector<int>& ranks);

}  // namespace hvd
