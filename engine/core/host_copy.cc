// SPDX-License-Identifier: Apache-2.0
#include "core/host_copy.h"

namespace hvd {

HostCopy::HostCopy(Devices* devices, Device* device, size_t bytes)
    : device_(device), bytes_(bytes), shared_(std::make_shared<Shared>(&devices->pinned())) {
  shared_->block = shared_->pinned->TakeSpare(device, bytes);
  if (shared_->block.data) return;
  job_ =
      devices->worker().Put([shared = shared_, device, bytes] { shared->block = shared->pinned->Take(device, bytes); });
}

bool HostCopy::IsThere() const {
  if (job_ && !job_->done.load(std::memory_order_acquire)) return false;
  if (job_ && !job_->error.empty()) throw DeviceError(job_->error);
  return true;
}

std::shared_ptr<DeviceMark> HostCopy::Down(CudaAddress tensor) {
  const Device::Scope scope(*device_);
  device_->CopyDown(data(), tensor, bytes_, device_->messages());
  return shared_->block.busy = DeviceMark::OfMessages(device_);
}

std::shared_ptr<DeviceMark> HostCopy::Up(CudaAddress tensor) {
  const Device::Scope scope(*device_);
  device_->CopyUp(tensor, data(), bytes_, device_->messages());
  return shared_->block.busy = DeviceMark::OfMessages(device_);
}

}  // namespace hvd
