// SPDX-License-Identifier: Apache-2.0
// Operations on GPUs that NCCL launches without agreement, because their callers vouch that all ranks call the same in
// the same order, as groups of torch.distributed do (HVD_PROMPT). Among all that the process launches, their place is
// that of their calls (devices/launch_gate). They go on a stream of the process, beside what their callers compute, and
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
  // Both outlive it.
  PromptRuns(ProcessSet* set, const Services* services) : set_(*set), services_(*services) {}
  PromptRuns(const PromptRuns&) = delete;
  PromptRuns& operator=(const PromptRuns&) = delete;

  // In the order of the calls. Those of one call are launched together.
  void Add(std::unique_ptr<Operation> operation);
  // Launches what may be, and finishes what is; true if anything moved. Throws DeviceError.
  bool Step();
  bool busy() const { return !runs_.empty(); }
  // Nothing more is launched, and everything fails.
  void Fail(const Status& status);

 private:
  struct Run {
    RunningBatch batch;
    std::unique_ptr<NcclLaunches> launches;  // null: not yet
  };

  void Launch(Run* run) const;

  ProcessSet& set_;
  const Services& services_;
  std::deque<Run> runs_;
};

}  // namespace hvd
