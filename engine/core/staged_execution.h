// SPDX-License-Identifier: Apache-2.0
// Runs batches of tensors on a device in pinned host memory: copies them down, runs the batch as for host tensors, and
// copies the results up. Only copy engines are used, so the batch needs no turn on the GPU's processors.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/on_device.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Return the events that mark the batch's tensors as ready. Tensors that were submitted together share one event.
DeviceMarks ReadyOf(const RunningBatch& batch);

class StagedMachine : public Machine {
 public:
  // Every operation must have its output already.
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
    DeviceParts inputs, outputs;  // in this order in the block; no outputs if results replace inputs
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
  const bool replaces_;  // true if results replace their inputs
  DeviceMarks ready_;
  std::shared_ptr<Staged> staged_;
  std::shared_ptr<DeviceWorker::Job> job_;  // set if pinned memory has to be allocated first
  std::shared_ptr<DeviceMark> arrived_;     // event after which the inputs are on the host
  std::vector<std::byte> zeros_;            // contribution of the inner machine for missing tensors
  std::unique_ptr<Machine> inner_;
};

}  // namespace hvd
