// SPDX-License-Identifier: Apache-2.0
// Decides whether an allreduce on a device can work on the tensors of all members without copying them: they must lie
// at equal offsets of regions that every member maps. Members negotiate to map new regions.
#pragma once

#include <vector>

#include "collectives/on_device.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

class DirectOnDevice {
 public:
  // For a batch whose tensors have offsets in regions, in a set whose members have found that they are on one device.
  DirectOnDevice(ProcessSet* set, const Entries* entries) : set_(*set), entries_(*entries) {}
  // Continue mapping new regions. kDone: all members have mapped all regions, or know that this is impossible.
  Machine::Step Advance();
  // After kDone: return the runs, or nothing if direct work is impossible. All members get the same answer.
  std::vector<DirectRun> Runs() const;

 private:
  bool NamesPlaces() const;
  bool BeginMeeting();

  ProcessSet& set_;
  const Entries& entries_;
  bool meets_ = false;
};

}  // namespace hvd
