// SPDX-License-Identifier: Apache-2.0
// Copies a GPU's tensor to or from pinned host memory, for a message between ranks, without blocking on the device.
#pragma once

#include <cstddef>
#include <memory>

#include "devices/devices.h"

namespace hvd {

class HostCopy {
 public:
  // Request pinned memory. IsThere returns true once it is available.
  HostCopy(Devices* devices, Device* device, size_t bytes);
  // Return true if the memory is available. Throws DeviceError.
  bool IsThere() const;
  std::byte* data() const { return shared_->block.data; }
  // Start the copy from (Down) or to (Up) the tensor. It is done when the returned event is.
  std::shared_ptr<DeviceMark> Down(CudaAddress tensor);
  std::shared_ptr<DeviceMark> Up(CudaAddress tensor);

 private:
  struct Shared {  // shared with the worker thread
    explicit Shared(BlockPool* memory) : pinned(memory) {}
    ~Shared() { pinned->GiveBack(std::move(block)); }

    BlockPool* pinned;
    BlockPool::Block block;
  };

  Device* device_;
  size_t bytes_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_;  // set if pinned memory has to be allocated first
};

}  // namespace hvd
