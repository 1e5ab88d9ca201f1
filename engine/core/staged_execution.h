// SPDX-License-Identifier: Apache-2.0
// Batches of tensors on a device through pinned memory of the host: copied down, run as if they had been there all the
// time, and copied up. By copy engines alone, so that no turn on the device's processors is needed.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/on_device.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// What makes the tensors of a batch ready. Those that were submitted together share one mark.
DeviceMarks ReadyOf(const RunningBatch& batch);

class StagedMachine : public Machine {
 public:
  // Every operation has its output, wherever that came from.
  StagedMachine(ProcessSet* set, const Settings* settings, Device* device, RunningBatch* batch);
  bool watches_device() const override { return !inner_; }
  Step Advance() override;

 private:
  struct Staged {
    explicit Staged(BlockPool* memory) : pinned(memory) {}
    ~Staged() { pinned->GiveBack(std::move(block)); }
    size_t bytes() const { return inputs.size() + outputs.size(); }

    BlockPool* pinned;
    Device* device = nullptr;
    DeviceParts inputs, outputs;  // one after the other in the block; no outputs: they replace the inputs
    BlockPool::Block block;
  };

  Step Down();
  void PrepareOnHost();
  void PlaceOnHost();
  void Up();
  size_t ResultBytes(const Operation& operation) const;

  ProcessSet& set_;
  const Settings& settings_;
  Device* device_;
  RunningBatch& batch_;
  const bool replaces_;  // a result lies where its input lay
  DeviceMarks ready_;
  std::shared_ptr<Staged> staged_;
  std::shared_ptr<DeviceWorker::Job> job_;  // where no pinned memory is at hand
  std::shared_ptr<DeviceMark> arrived_;     // on the host
  std::vector<std::byte> zeros_;            // what the inner machine contributes for tensors that are not here
  std::unique_ptr<Machine> inner_;
};

}  // namespace hvd
