// SPDX-License-Identifier: Apache-2.0
// Operations on GPUs that NCCL launches without negotiation (HVD_PROMPT), because their callers guarantee that all
// ranks call the same operations in the same order, as process groups of torch.distributed do. They are launched in the
// order of the calls in this process (devices/launch_gate), on a separate stream beside the callers' computation. They
// are done when they are launched.
#pragma once

#include <deque>
#include <memory>

#include "collectives/over_nccl.h"
#include "core/process_set.h"
#include "core/running_batch.h"
#include "core/services.h"

namespace hvd {

class PromptRuns {
 public:
  // Both arguments must outlive this object.
  PromptRuns(ProcessSet* set, const Services* services) : set_(*set), services_(*services) {}
  PromptRuns(const PromptRuns&) = delete;
  PromptRuns& operator=(const PromptRuns&) = delete;

  // Queue an operation in the order of the calls. Operations of one call are launched together.
  void Add(std::unique_ptr<Operation> operation);
  // Launch what may be launched and finish what is done. Return true if anything moved. Throws DeviceError.
  bool Step();
  bool busy() const { return !runs_.empty(); }
  // Fail all operations and launch nothing more.
  void Fail(const Status& status);

 private:
  struct Run {
    RunningBatch batch;
    std::unique_ptr<NcclLaunches> launches;  // null until launched
  };

  void Launch(Run* run) const;

  ProcessSet& set_;
  const Services& services_;
  std::deque<Run> runs_;
};

}  // namespace hvd
