// SPDX-License-Identifier: Apache-2.0
#include "core/shown.h"

namespace hvd {

void ShowReport(Timeline* timeline, const ProcessSet& set, const EntryCache& cache, const control::Report& report) {
  const int rank = set.ranks()[report.member];
  for (uint32_t slot : report.slots) {
    if (const Entry* known = cache.Find(slot)) timeline->Ready(set.id(), known->request, rank);
  }
  if (report.has_request) timeline->Ready(set.id(), report.request, rank);
}

void ShowAgreed(Timeline* timeline, const ProcessSet& set, const RunningBatch& batch) {
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    timeline->Agreed(set.id(), batch.entries[i]->request, batch.operations[i] != nullptr);
  }
  for (const auto& operation : batch.operations) {
    if (operation) timeline->Queued(set.id(), operation->request);
  }
}

void ShowTransfers(Timeline* timeline, const ProcessSet& set, RunningBatch* batch) {
  if (batch->shown) return;
  batch->shown = true;
  for (const auto& operation : batch->operations) {
    if (operation) timeline->Transfers(set.id(), operation->request, batch->foreign ? "MPI" : set.transport());
  }
}

}  // namespace hvd
