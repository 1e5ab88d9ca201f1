// SPDX-License-Identifier: Apache-2.0
#include "devices/devices.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace hvd {
namespace {

constexpr size_t kSpareBlocks = 8;
constexpr size_t kLeastBlock = size_t{64} << 10;

size_t RoundUp(size_t bytes) {
  size_t size = kLeastBlock;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

bool DeviceMark::IsDone() const {
  const int result = device_->cuda().event_query(event_);
  if (result == kCudaNotReady) return false;
  device_->Check(result, "wait for");
  return true;
}

bool AreDone(DeviceMarks* marks) {
  while (!marks->empty() && marks->back()->IsDone()) marks->pop_back();
  return marks->empty();
}

PinnedMemory::~PinnedMemory() {
  for (Block& block : spare_) {
    if (block.device->abandoned()) continue;
    try {
      const Device::Scope scope(*block.device);
      block.device->cuda().host_free(block.data);
    } catch (const DeviceError&) {
    }
  }
}

PinnedMemory::Block PinnedMemory::TakeSpare(size_t bytes) {
  const size_t size = RoundUp(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = spare_.begin(); it != spare_.end(); ++it) {
    if (it->bytes != size || (it->busy && !it->busy->IsDone())) continue;
    Block block = std::move(*it);
    spare_.erase(it);
    block.busy.reset();
    return block;
  }
  return {};
}

PinnedMemory::Block PinnedMemory::Take(Device* device, size_t bytes) {
  Trim();
  if (Block spare = TakeSpare(bytes); spare.data) return spare;
  const size_t size = RoundUp(bytes);
  const Device::Scope scope(*device);
  void* data = nullptr;
  device->Check(device->cuda().host_allocate(&data, size, kCudaHostPortable), "pin host memory for");
  return {static_cast<std::byte*>(data), size, nullptr, device};
}

void PinnedMemory::GiveBack(Block block) {
  if (!block.data) return;
  std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(block));
}

// Freeing waits for the device: done by who takes, since who gives back drives the engine.
void PinnedMemory::Trim() {
  std::vector<Block> oldest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    while (spare_.size() > kSpareBlocks) {
      oldest.push_back(std::move(spare_.front()));
      spare_.erase(spare_.begin());
    }
  }
  for (Block& block : oldest) {
    const Device::Scope scope(*block.device);
    block.device->cuda().host_free(block.data);
  }
}

Devices::~Devices() {
  worker_.reset();  // what it has to do refers to all others
}

Device* Devices::Use(int ordinal) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Device>& device = devices_[ordinal];
  if (!device) {
    std::string why;
    const Cuda* const cuda = Cuda::Open(&why);
    if (!cuda) throw DeviceError("a tensor on GPU " + std::to_string(ordinal) + " cannot be used: " + why);
    device = std::make_unique<Device>(cuda, ordinal);
  }
  return device.get();
}

DeviceWorker& Devices::worker() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!worker_) worker_ = std::make_unique<DeviceWorker>(wake_);
  return *worker_;
}

std::shared_ptr<DeviceMark> Devices::MarkReady(int ordinal, uint64_t stream) {
  Device* const device = Use(ordinal);
  const Device::Scope scope(*device);
  if (device->IsIdle(reinterpret_cast<CudaStream>(stream))) return nullptr;
  return std::make_shared<DeviceMark>(device, device->Mark(reinterpret_cast<CudaStream>(stream)));
}

void Devices::LetWait(int ordinal, uint64_t stream) {
  Device* const device = Use(ordinal);
  const Device::Scope scope(*device);
  device->LetWait(reinterpret_cast<CudaStream>(stream));
}

void Devices::Drain(std::chrono::steady_clock::time_point until) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [ordinal, device] : devices_) {
    if (!device) continue;
    try {
      if (!device->AwaitIdle(until)) device->Abandon();
    } catch (const DeviceError&) {
    }
  }
}

void Devices::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  worker_.reset();
}

}  // namespace hvd
