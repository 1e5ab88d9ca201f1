// SPDX-License-Identifier: Apache-2.0
// Whether an allreduce on a device can work on the tensors of all members where they lie: all at the same places of
// regions that every member maps. Members meet about regions that are new.
#pragma once

#include <vector>

#include "collectives/on_device.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

class DirectOnDevice {
 public:
  // Of a batch whose tensors have places, in a set whose members have met on one device.
  DirectOnDevice(ProcessSet* set, const Entries* entries) : set_(*set), entries_(*entries) {}
  // kDone: all members know all regions, or know that it cannot be.
  Machine::Step Advance();
  // Then: empty, if it cannot be. All members come to the same.
  std::vector<DirectRun> Runs() const;

 private:
  bool NamesPlaces() const;
  bool BeginMeeting();

  ProcessSet& set_;
  const Entries& entries_;
  bool meets_ = false;
};

}  // namespace hvd
