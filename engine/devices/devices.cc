// SPDX-License-Identifier: Apache-2.0
#include "devices/devices.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace hvd {
namespace {

constexpr size_t kSpareBlocks = 8;
constexpr size_t kSpareBytes = size_t{256} << 20;  // limit for blocks that are kept for reuse
constexpr size_t kLeastBlock = size_t{64} << 10, kLargeBlock = size_t{32} << 20;

size_t RoundUp(size_t bytes) {
  if (bytes > kLargeBlock) return (bytes + kLargeBlock - 1) / kLargeBlock * kLargeBlock;
  size_t size = kLeastBlock;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

std::shared_ptr<DeviceMark> DeviceMark::OfMessages(Device* device) {
  device->Launched(device->messages());
  return std::make_shared<DeviceMark>(device, device->Mark(device->messages()));
}

bool DeviceMark::IsDone() const {
  const Device::Scope scope(*device_);
  const int result = device_->cuda().event_query(event_);
  if (result == kCudaNotReady) return false;
  device_->Check(result, "wait for");
  return true;
}

bool AreDone(DeviceMarks* marks) {
  while (!marks->empty() && marks->back()->IsDone()) marks->pop_back();
  return marks->empty();
}

BlockPool::~BlockPool() {
  for (std::vector<Block>* blocks : {&spare_, &discarded_}) {
    for (Block& block : *blocks) {
      if (block.device->abandoned()) continue;
      try {
        Free(&block);
      } catch (const DeviceError&) {
      }
    }
  }
}

BlockPool::Block BlockPool::TakeSpare(const Device* device, size_t bytes) {
  const size_t size = RoundUp(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = spare_.begin(); it != spare_.end(); ++it) {
    const bool reached = where_ == Where::kPinned || it->device == device;
    if (it->bytes != size || !reached || (it->busy && !it->busy->IsDone())) continue;
    Block block = std::move(*it);
    spare_.erase(it);
    block.busy.reset();
    return block;
  }
  return {};
}

BlockPool::Block BlockPool::Take(Device* device, size_t bytes) {
  if (Block spare = TakeSpare(device, bytes); spare.data) return spare;
  const size_t size = RoundUp(bytes);
  const Device::Scope scope(*device);
  // Freeing pinned memory may wait for all work of the device. That may wait for another rank, which may wait for this
  // caller, the receiver of a message. So free nothing while the device is busy.
  if (where_ == Where::kOnDevice || !device->IsBusy()) Trim();
  if (where_ == Where::kOnDevice) {
    return {reinterpret_cast<std::byte*>(device->Allocate(size)), size, nullptr, device};
  }
  void* data = nullptr;
  int result = device->cuda().host_allocate(&data, size, kCudaHostPortable);
  if (result == kCudaOutOfMemory) {
    Trim();
    result = device->cuda().host_allocate(&data, size, kCudaHostPortable);
  }
  device->Check(result, "pin host memory for");
  return {static_cast<std::byte*>(data), size, nullptr, device};
}

void BlockPool::GiveBack(Block block) {
  if (!block.data) return;
  std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(block));
}

void BlockPool::Discard(Block block) {
  if (!block.data) return;
  std::lock_guard<std::mutex> lock(mutex_);
  discarded_.push_back(std::move(block));
}

// Free surplus blocks. This waits for the device, so Take calls it and GiveBack does not, because GiveBack may run on
// the thread that drives the engine.
void BlockPool::Trim() {
  std::vector<Block> oldest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    oldest.swap(discarded_);
    size_t kept = 0;
    for (const Block& block : spare_) kept += block.bytes;
    while (spare_.size() > kSpareBlocks || (!spare_.empty() && kept > kSpareBytes)) {
      kept -= spare_.front().bytes;
      oldest.push_back(std::move(spare_.front()));
      spare_.erase(spare_.begin());
    }
  }
  for (Block& block : oldest) Free(&block);
}

void BlockPool::Free(Block* block) const {
  const Device::Scope scope(*block->device);
  const Cuda& cuda = block->device->cuda();
  if (where_ == Where::kOnDevice) {
    cuda.memory_free(AddressOf(block->data));
  } else {
    cuda.host_free(block->data);
  }
}

Devices::~Devices() {
  worker_.reset();  // reset first, because its jobs refer to all other members
  launcher_.reset();
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
  return last_used_ = device.get();
}

Device* Devices::UseIfThere(int ordinal) {
  try {
    return Use(ordinal);
  } catch (const DeviceError&) {
    return Use(0);
  }
}

Device* Devices::last_used() {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_used_;
}

DeviceWorker& Devices::worker() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!worker_) worker_ = std::make_unique<DeviceWorker>("hvd-device", wake_);
  return *worker_;
}

DeviceWorker& Devices::launcher() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!launcher_) launcher_ = std::make_unique<DeviceWorker>("hvd-nccl", wake_);
  return *launcher_;
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

void Devices::CopyOutput(BlockPool::Block block, CudaAddress to, size_t bytes, uint64_t stream) {
  Device* const device = block.device;
  const Device::Scope scope(*device);
  const auto on = reinterpret_cast<CudaStream>(stream);
  device->LetWait(on);
  device->CopyOn(to, AddressOf(block.data), bytes, on);
  block.busy = std::make_shared<DeviceMark>(device, device->Mark(on));
  outputs_.GiveBack(std::move(block));
}

std::vector<Device*> Devices::Used() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Device*> used;
  for (auto& [ordinal, device] : devices_) {
    if (device) used.push_back(device.get());
  }
  return used;
}

bool Devices::AwaitIdle(std::chrono::steady_clock::time_point until) {
  try {
    // wait without the lock, because other threads may need it to finish the work
    for (Device* const device : Used()) {
      if (!device->AwaitIdle(until)) return false;
    }
  } catch (const DeviceError&) {  // a failed device never finishes, so do not wait for it
  }
  return true;
}

void Devices::Drain(std::chrono::steady_clock::time_point until) {
  for (Device* const device : Used()) {
    try {
      if (!device->AwaitIdle(until)) device->Abandon();
    } catch (const DeviceError&) {
    }
  }
}

void Devices::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  worker_.reset();
  launcher_.reset();
  for (const auto& calls : {calls_.get(), prompt_calls_.get()}) {
    if (calls) calls->Leave();
  }
}

}  // namespace hvd
