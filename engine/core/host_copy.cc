// SPDX-License-Identifier: Apache-2.0
#include "core/host_copy.h"

namespace hvd {

HostCopy::HostCopy(Devices* devices, Device* device, CudaAddress tensor, size_t bytes, bool down)
    : device_(device),
      tensor_(tensor),
      bytes_(bytes),
      down_(down),
      shared_(std::make_shared<Shared>(&devices->pinned())) {
  shared_->block = shared_->pinned->TakeSpare(device, bytes);
  if (shared_->block.data) return;
  job_ =
      devices->worker().Put([shared = shared_, device, bytes] { shared->block = shared->pinned->Take(device, bytes); });
}

bool HostCopy::IsThere() {
  if (job_ && !job_->done.load(std::memory_order_acquire)) return false;
  if (job_ && !job_->error.empty()) throw DeviceError(job_->error);
  if (!down_) return true;
  const Device::Scope scope(*device_);
  if (!arrived_) {
    device_->CopyDown(data(), tensor_, bytes_, device_->copies());
    arrived_ = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
    shared_->block.busy = arrived_;
  }
  return arrived_->IsDone();
}

std::shared_ptr<DeviceMark> HostCopy::Up() {
  const Device::Scope scope(*device_);
  device_->CopyUp(tensor_, data(), bytes_, device_->copies());
  auto mark = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
  shared_->block.busy = mark;
  device_->Launched(device_->copies());
  return mark;
}

}  // namespace hvd
