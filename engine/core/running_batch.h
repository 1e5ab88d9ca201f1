// SPDX-License-Identifier: Apache-2.0
// A batch that all members have agreed upon, on its way through a process set's lanes.
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
  uint64_t sequence = 0;                               // of its record in the set's log
  bool placed = false;                                 // every member's tensor lies at its place in `sizes`
  size_t chunk_bytes = 0;                              // in force where the batch stands in the log
  std::unique_ptr<Machine> machine;                    // made when the lanes are free for it
  std::vector<std::unique_ptr<Operation>> operations;  // null where this rank has joined
  std::vector<std::byte> zeros;                        // what a joined rank contributes
  bool shown = false;                                  // the timeline knows that it runs
  bool over = false;                                   // but for bytes that are still to leave
  bool foreign = false;                                // another library moves its bytes
  bool on_device = false;                              // its tensors lie on GPUs, and
  const char* way_on_device = nullptr;                 // how their bytes travel, once that is known
  bool direct = false;                                 // works on the tensors of all where they lie
};

}  // namespace hvd
