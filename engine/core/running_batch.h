// SPDX-License-Identifier: Apache-2.0
// A batch that all members have agreed upon, while it runs in a process set.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "agreement/message.h"
#include "collectives/machine.h"
#include "core/handle.h"

namespace hvd {

struct RunningBatch {
  Entries entries;
  uint64_t sequence = 0;                               // sequence number of its record in the set's log
  bool placed = false;                                 // true if `sizes` holds the offsets of all members' tensors
  size_t chunk_bytes = 0;                              // chunk size in force at this position of the log
  std::unique_ptr<Machine> machine;                    // made when the lanes are free for the batch
  std::vector<std::unique_ptr<Operation>> operations;  // null where this rank has joined
  std::vector<std::byte> zeros;                        // contribution of a rank that has joined
  bool shown = false;                                  // the timeline shows it as running
  bool over = false;                                   // finished, except for bytes not sent yet
  bool foreign = false;                                // an external library moves its bytes
  bool on_device = false;                              // its tensors are on GPUs
  const char* way_on_device = nullptr;                 // how tensors on GPUs travel, once known
  bool direct = false;                                 // works on all members' tensors without copies
};

}  // namespace hvd
