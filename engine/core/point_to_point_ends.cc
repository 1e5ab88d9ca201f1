// SPDX-License-Identifier: Apache-2.0
// What happens to messages when a rank leaves or is lost, also to those that a device is working on.
#include <algorithm>
#include <utility>

#include "core/point_to_point.h"

namespace hvd {
namespace {

// Return true if the device is done, or never will be because the driver library was shut down.
bool IsOver(const DeviceMark& mark) {
  try {
    return mark.IsDone();
  } catch (const DeviceError&) {
    return true;
  }
}

}  // namespace

// Fail operations that the other rank has not answered or does not know.
void PointToPoint::FailUnanswered(Pair& pair, const Status& status) {
  for (auto& [id, operation] : std::exchange(pair.offered, {})) Finish(std::move(operation), status);
  for (auto* queues : {&pair.unready, &pair.receives}) {
    for (auto& [tag, waiting] : std::exchange(*queues, {})) {
      for (auto& operation : waiting) Finish(std::move(operation), status);
    }
  }
  pair.unmatched.clear();
}

void PointToPoint::FailTransfers(std::deque<Transfer>* queue, const Status& status, bool from_slots_on) {
  const auto goes_through_slots = [](const Transfer& transfer) { return transfer.way == Way::kSlots; };
  auto first = queue->begin();
  if (from_slots_on) first = std::find_if(first, queue->end(), goes_through_slots);
  for (; first != queue->end(); ++first) {
    if (first->failed.ok()) first->failed = status;
  }
  FinishFailed(queue);
}

// Finish failed operations in order. If a device still reads or writes the tensor, wait until it is done.
bool PointToPoint::FinishFailed(std::deque<Transfer>* queue) {
  bool any = false;
  while (!queue->empty() && !queue->front().failed.ok()) {
    Transfer& first = queue->front();
    if (first.mark && !IsOver(*first.mark)) break;
    if (!first.begun.empty() && !IsOver(*first.begun.back().mark)) break;
    const Status status = first.failed;
    std::unique_ptr<Operation> operation = std::move(first.operation);
    queue->pop_front();
    Finish(std::move(operation), status);
    any = true;
  }
  return any;
}

// Finish accepted messages after the other rank has left, as far as their data is in shared memory. Slots were freed by
// their owner, so messages through them and the messages behind those have failed already.
void PointToPoint::FinishAfterFarewell(Pair& pair) {
  StepIn(pair);
  StepOut(pair);
  const bool waits_for_device =
      !pair.incoming.empty() && pair.incoming.front().way == Way::kPinned &&
      (!pair.incoming.front().copy || pair.incoming.front().mark || !pair.incoming.front().copy->IsThere());
  if (waits_for_device) return;
  for (auto* queue : {&pair.outgoing, &pair.incoming}) FailTransfers(queue, pair.left, false);
}

void PointToPoint::Fail(int rank, const Status& status) {
  for (auto& [other, pair] : pairs_) {
    if (rank >= 0 && rank != other) continue;
    FailUnanswered(pair, status);
    if (rank >= 0) StepUnread(pair);  // the other rank may have read everything before it left
    FailTransfers(&pair.unread, status, false);
    for (auto* queue : {&pair.outgoing, &pair.incoming}) FailTransfers(queue, status, rank >= 0);
    if (rank >= 0 && pair.in_memory) {
      pair.left = status;
      FinishAfterFarewell(pair);
    }
  }
}

void PointToPoint::CloseDescriptors() {
  for (auto& [rank, pair] : pairs_) {
    if (pair.lane) pair.lane->CloseDescriptors();
  }
}

void PointToPoint::LeaveDevices() {
  for (auto& [rank, pair] : pairs_) {
    for (auto* queue : {&pair.outgoing, &pair.incoming}) {
      for (Transfer& transfer : std::exchange(*queue, {})) Finish(std::move(transfer.operation), transfer.failed);
    }
    pair.slots_out.reset();
    pair.slots_in.reset();
  }
}

}  // namespace hvd
