// SPDX-License-Identifier: Apache-2.0
// A GPU's tensor in pinned memory of the host, on its way to another rank or from it. Nobody waits for the device.
#pragma once

#include <cstddef>
#include <memory>

#include "devices/devices.h"

namespace hvd {

class HostCopy {
 public:
  // From here on it is asked for memory.
  HostCopy(Devices* devices, Device* device, size_t bytes);
  // Whether that is there. Throws DeviceError.
  bool IsThere() const;
  std::byte* data() const { return shared_->block.data; }
  // From or to the tensor; done when the mark is.
  std::shared_ptr<DeviceMark> Down(CudaAddress tensor);
  std::shared_ptr<DeviceMark> Up(CudaAddress tensor);

 private:
  struct Shared {  // with the worker
    explicit Shared(BlockPool* memory) : pinned(memory) {}
    ~Shared() { pinned->GiveBack(std::move(block)); }

    BlockPool* pinned;
    BlockPool::Block block;
  };

  Device* device_;
  size_t bytes_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_;  // where no pinned memory is at hand
};

}  // namespace hvd
