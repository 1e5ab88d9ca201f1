// SPDX-License-Identifier: Apache-2.0
// Writes the events of a process set to the timeline.
#pragma once

#include "agreement/control.h"
#include "agreement/entry_cache.h"
#include "core/process_set.h"
#include "core/running_batch.h"
#include "tracing/timeline.h"

namespace hvd {

void ShowReport(Timeline* timeline, const ProcessSet& set, const EntryCache& cache, const control::Report& report);
// Show that the members have agreed on the batch, which now waits for the lanes.
void ShowAgreed(Timeline* timeline, const ProcessSet& set, const RunningBatch& batch);
// Show that the batch runs and which way it takes, once that is known. A second call does nothing.
void ShowTransfers(Timeline* timeline, const ProcessSet& set, RunningBatch* batch);
// Show the work that GPUs have finished since the last call.
void ShowDeviceTimes(Timeline* timeline, Devices* devices);

}  // namespace hvd
