// SPDX-License-Identifier: Apache-2.0
// What of a set's life goes into the timeline.
#pragma once

#include "agreement/control.h"
#include "agreement/entry_cache.h"
#include "core/process_set.h"
#include "core/running_batch.h"
#include "tracing/timeline.h"

namespace hvd {

void ShowReport(Timeline* timeline, const ProcessSet& set, const EntryCache& cache, const control::Report& report);
// Its members have agreed on the batch, which waits for the lanes.
void ShowAgreed(Timeline* timeline, const ProcessSet& set, const RunningBatch& batch);
// Its turn has come, and how it goes is known. Does nothing the second time.
void ShowTransfers(Timeline* timeline, const ProcessSet& set, RunningBatch* batch);
// What GPUs have done since.
void ShowDeviceTimes(Timeline* timeline, Devices* devices);

}  // namespace hvd
