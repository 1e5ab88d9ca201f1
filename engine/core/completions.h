// SPDX-License-Identifier: Apache-2.0
// Finishes operations: frees their names for new submissions and stores the outcome in their handles. Only the thread
// that drives the engine uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/handle.h"
#include "core/submissions.h"
#include "tracing/timeline.h"

namespace hvd {

class Completions {
 public:
  Completions(Submissions* submissions, Timeline* timeline) : submissions_(submissions), timeline_(timeline) {}

  void Finish(std::unique_ptr<Operation> operation, const Status& status) {
    if (Timeline* shown = timeline_->if_on()) {
      shown->Finished(operation->process_set, operation->request, status.ok());
    }
    if (status.ok() && MovesTensor(operation->request.kind)) Count(operation->request);
    const std::shared_ptr<Handle> handle = std::move(operation->handle);
    // First, because a caller that is waiting may submit the name again at once.
    submissions_->Finished(std::move(operation));
    if (!status.ok() && handle->status.ok()) handle->status = status;
    if (--handle->left > 0) return;
    finished_.push_back(handle);
    handle->done.store(true, std::memory_order_release);
  }

  // Collectives that have moved this rank's tensors, and the bytes of those tensors. Any thread may call these.
  uint64_t collectives() const { return collectives_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  bool empty() const { return finished_.empty(); }
  // Return the handles that have finished since the last call.
  std::vector<std::shared_ptr<Handle>> TakeFinished() { return std::exchange(finished_, {}); }

 private:
  // Update the counters. No lock is needed because there is one writer.
  void Count(const Request& request) {
    collectives_.store(collectives() + 1, std::memory_order_relaxed);
    bytes_.store(bytes() + request.Bytes(), std::memory_order_relaxed);
  }

  Submissions* submissions_;
  Timeline* timeline_;
  std::vector<std::shared_ptr<Handle>> finished_;
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace hvd
