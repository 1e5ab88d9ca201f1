// SPDX-License-Identifier: Apache-2.0
// What becomes of messages when a rank leaves or is lost, and of those that a device is at then.
#include <algorithm>
#include <utility>

#include "core/point_to_point.h"

namespace hvd {
namespace {

// Whether the device is done, or will never be because it has come to its end.
bool IsOver(const DeviceMark& mark) {
  try {
    return mark.IsDone();
  } catch (const DeviceError&) {
    return true;
  }
}

}  // namespace

// The other end has not answered, or does not know of it.
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

// What a device is at is finished when it is done: until then it reads or writes the tensor.
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

// What was accepted can still finish after a farewell, if all of it lies there. Slots went with their owner, and what
// comes behind them.
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
    if (rank >= 0) StepUnread(pair);  // it may have read all of it before it left
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
