// SPDX-License-Identifier: Apache-2.0
// Where operations end: their names are free again, and their handles tell the outcome. Used by the driver alone.
#pragma once

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
    const std::shared_ptr<Handle> handle = std::move(operation->handle);
    submissions_->Finished(std::move(operation));  // first: whoever waits may submit the name again
    if (!status.ok() && handle->status.ok()) handle->status = status;
    if (--handle->left > 0) return;
    finished_.push_back(handle);
    handle->done.store(true, std::memory_order_release);
  }

  bool empty() const { return finished_.empty(); }
  // Handles that were finished since the last call.
  std::vector<std::shared_ptr<Handle>> TakeFinished() { return std::exchange(finished_, {}); }

 private:
  Submissions* submissions_;
  Timeline* timeline_;
  std::vector<std::shared_ptr<Handle>> finished_;
};

}  // namespace hvd
