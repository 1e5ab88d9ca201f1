// SPDX-License-Identifier: Apache-2.0
#include "core/shown.h"

#include <string>
#include <string_view>

namespace hvd {
namespace {

// Return how the bytes of a batch travel. Direct exchange is the normal case and is not named.
const char* WayOf(const ProcessSet& set, HostAlgorithm algorithm) {
  const bool memory_too = std::string_view(set.transport()) == "SHM_TCP";
  switch (algorithm) {
    case HostAlgorithm::kRing:
      return memory_too ? "SHM_TCP_RING" : "TCP_RING";
    case HostAlgorithm::kDoubling:
      return memory_too ? "SHM_TCP_DOUBLING" : "TCP_DOUBLING";
    default:
      return set.transport();
  }
}

}  // namespace

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
  if (batch->shown || (batch->on_device && !batch->way_on_device)) return;
  batch->shown = true;
  for (const auto& operation : batch->operations) {
    if (!operation) continue;
    const char* way = batch->foreign     ? "MPI"
                      : batch->on_device ? batch->way_on_device
                                         : WayOf(set, batch->entries[0]->algorithm);
    timeline->Transfers(set.id(), operation->request, way);
  }
}

void ShowDeviceTimes(Timeline* timeline, Devices* devices) {
  devices->times().Collect([timeline](int ordinal, const std::string& name, int64_t began_ns, int64_t ended_ns) {
    timeline->Show(Span{name, began_ns, ended_ns, "GPU " + std::to_string(ordinal)});
  });
}

}  // namespace hvd
