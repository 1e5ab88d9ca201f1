// SPDX-License-Identifier: Apache-2.0
// Results of an allgather or alltoall on a device, whose sizes only the agreement told: memory that the caller gave or
// allocates, or else a block of the engine's, which the handle keeps until the caller has copied it to its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Whether an operation's result differs from its input in size by what others contribute.
bool IsExchange(OpKind kind);
// Rows that member `from` contributes to the result of member `to`.
int64_t RowsBetween(const Entry& entry, size_t members, size_t from, size_t to);

class DeviceOutputs {
 public:
  // For operations of other kinds there is nothing to do.
  DeviceOutputs(Devices* devices, Device* device) : devices_(*devices), device_(device) {}
  // True once each operation has an output, of which its handle knows the size. Throws DeviceError without memory.
  bool Prepare(const ProcessSet& set, RunningBatch* batch);

 private:
  struct Blocks {  // on their way to the handles
    ~Blocks();
    BlockPool* pool = nullptr;
    std::vector<BlockPool::Block> all;
  };

  void Measure(const ProcessSet& set, RunningBatch* batch);
  bool TakeBlocks();

  Devices& devices_;
  Device* device_;
  bool measured_ = false, ready_ = false;
  std::vector<Operation*> without_;  // operations whose output the engine allocates, and
  std::vector<size_t> bytes_;        // how large they are
  std::shared_ptr<Blocks> blocks_;
  std::shared_ptr<DeviceWorker::Job> job_;
};

}  // namespace hvd
