// SPDX-License-Identifier: Apache-2.0
// A GPU's tensor in pinned memory of the host, on its way to another rank or from it. Nobody waits for the device.
#pragma once

#include <cstddef>
#include <memory>

#include "devices/devices.h"

namespace hvd {

class HostCopy {
 public:
  // From here on it is asked for memory, and `down`: to be filled with the tensor, which is ready.
  HostCopy(Devices* devices, Device* device, CudaAddress tensor, size_t bytes, bool down);
  // Whether `data` may be used. Throws DeviceError.
  bool IsThere();
  std::byte* data() const { return shared_->block.data; }
  // Copies it to the tensor: the mark says when that is done.
  std::shared_ptr<DeviceMark> Up();

 private:
  struct Shared {  // with the worker
    explicit Shared(BlockPool* memory) : pinned(memory) {}
    ~Shared() { pinned->GiveBack(std::move(block)); }

    BlockPool* pinned;
    BlockPool::Block block;
  };

  Device* device_;
  CudaAddress tensor_;
  size_t bytes_;
  bool down_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_;  // where no pinned memory is at hand
  std::shared_ptr<DeviceMark> arrived_;
};

}  // namespace hvd
