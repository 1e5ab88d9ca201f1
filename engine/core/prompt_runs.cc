// SPDX-License-Identifier: Apache-2.0
#include "core/prompt_runs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/device_execution.h"
#include "core/nccl_execution.h"
#include "core/shown.h"
#include "core/staged_execution.h"

namespace hvd {
namespace {

// Return the sizes that negotiation would have produced: the rows of all members, or for an alltoall the rows from and
// to this member.
std::vector<int64_t> SizesOf(const Request& request, size_t members, size_t me) {
  if (request.kind == OpKind::kAllgather) {
    return request.splits.empty() ? std::vector<int64_t>(members, request.shape.at(0)) : request.splits;
  }
  if (request.kind != OpKind::kAlltoall) return {};
  std::vector<int64_t> sizes(1 + members * members, 0);
  for (size_t j = 0; j < members; ++j) {
    sizes[1 + me * members + j] = request.splits.at(j);
    sizes[1 + j * members + me] = request.splits.at(members + j);
  }
  sizes[0] = *std::max_element(sizes.begin() + 1, sizes.end());
  return sizes;
}

bool BelongTogether(const Operation& one, const Operation& next) {
  return one.handle == next.handle && one.request.dtype == next.request.dtype;
}

}  // namespace

void PromptRuns::Add(std::unique_ptr<Operation> operation) {
  if (Timeline* shown = services_.timeline->if_on()) {
    shown->Ready(set_.id(), operation->request, set_.ranks()[static_cast<size_t>(set_.me())]);
  }
  auto entry = std::make_shared<Entry>();
  entry->request = operation->request;
  entry->device = operation->request.device;
  entry->sizes = SizesOf(operation->request, set_.ranks().size(), static_cast<size_t>(set_.me()));
  const bool more =
      !runs_.empty() && !runs_.back().launches && BelongTogether(*runs_.back().batch.operations.back(), *operation);
  if (!more) runs_.emplace_back();
  RunningBatch& batch = runs_.back().batch;
  batch.entries.push_back(std::move(entry));
  batch.operations.push_back(std::move(operation));
}

// Several runs may wait in the launcher at once; it keeps their order.
bool PromptRuns::Step() {
  bool moved = false;
  for (Run& run : runs_) {
    if (run.launches) continue;
    if (!set_.devices()->prompt_calls()->IsNext(run.batch.operations[0]->ticket)) break;
    Launch(&run);
    moved = true;
  }
  while (!runs_.empty() && runs_.front().launches && runs_.front().launches->IsOver()) {
    for (auto& operation : runs_.front().batch.operations) {
      services_.completions->Finish(std::move(operation), Status::Ok());
    }
    runs_.pop_front();
    moved = true;
  }
  return moved;
}

void PromptRuns::Launch(Run* run) const {
  RunningBatch& batch = run->batch;
  batch.on_device = true;
  batch.way_on_device = kByNccl;
  if (Timeline* shown = services_.timeline->if_on()) {
    ShowAgreed(shown, set_, batch);
    ShowTransfers(shown, set_, &batch);
  }
  ++services_.counters->device_batches;
  ++services_.counters->prompt_batches;
  services_.traffic->data_is_known = false;  // NCCL does not report its bytes
  Devices* const devices = set_.devices();
  Device* const device = devices->prompt_device();
  // The tickets are released after the launch, so that later launches follow, or with the launch if it never happens.
  auto tickets = std::make_shared<std::vector<LaunchTicket>>();
  for (auto& operation : batch.operations) tickets->push_back(std::move(operation->ticket));
  DeviceOrder order{devices->prompt_calls()->StreamOn(*device), ReadyOf(batch)};
  const CudaStream stream = order.stream;
  run->launches = std::make_unique<NcclLaunches>(devices, set_.nccl()->communicator());
  run->launches->Put(std::move(order), LaunchOf(set_, batch),
                     [devices, device, stream, tickets, name = batch.entries[0]->request.name] {
                       devices->watch().Launched(device, stream, name);
                       tickets->clear();
                     });
}

void PromptRuns::Fail(const Status& status) {
  for (Run& run : runs_) run.launches.reset();  // runs that were not launched stop using the callers' tensors
  for (Run& run : std::exchange(runs_, {})) {
    for (auto& operation : run.batch.operations) services_.completions->Finish(std::move(operation), status);
  }
}

}  // namespace hvd
