// SPDX-License-Identifier: Apache-2.0
// Outputs of allgathers and alltoalls on a device, whose sizes are known only after negotiation: memory that the caller
// gave or allocates, or a block of the engine's that the handle keeps until the caller has copied it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Return true if the size of the result depends on what other members contribute (allgather, alltoall).
bool IsExchange(OpKind kind);
// Return the rows that member `from` contributes to the result of member `to`.
int64_t RowsBetween(const Entry& entry, size_t members, size_t from, size_t to);

class DeviceOutputs {
 public:
  // Operations of other kinds need no preparation.
  DeviceOutputs(Devices* devices, Device* device) : devices_(*devices), device_(device) {}
  // Return true once each operation has an output and its handle knows the size. Throws DeviceError if memory runs out.
  bool Prepare(const ProcessSet& set, RunningBatch* batch);

 private:
  struct Blocks {  // blocks that have not been passed to the handles yet
    ~Blocks();
    BlockPool* pool = nullptr;
    std::vector<BlockPool::Block> all;
  };

  void Measure(const ProcessSet& set, RunningBatch* batch);
  bool TakeBlocks();

  Devices& devices_;
  Device* device_;
  bool measured_ = false, ready_ = false;
  std::vector<Operation*> without_;  // operations whose output the engine allocates
  std::vector<size_t> bytes_;        // sizes of these outputs
  std::shared_ptr<Blocks> blocks_;
  std::shared_ptr<DeviceWorker::Job> job_;
};

}  // namespace hvd
