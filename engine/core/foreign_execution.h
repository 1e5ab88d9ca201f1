// SPDX-License-Identifier: Apache-2.0
// An agreed batch as jobs for another library (see collectives/foreign.h).
#pragma once

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// False, on all members alike: this batch runs our own way. These are Adasum, reductions that must be deterministic,
// minima and maxima of floats (where NaN stays NaN), float8, and more bytes than other libraries can count.
bool PrepareForeign(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

// To make a group of the members of a new set, or to forget it. All ranks do this in the order of the global log, so
// that they may wait for each other meanwhile.
void PutGroupJob(ForeignJobs* jobs, OpKind kind, uint32_t epoch, const std::vector<int>& ranks);

}  // namespace hvd
