// SPDX-License-Identifier: Apache-2.0
#include "devices/devices.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace hvd {
namespace {

constexpr size_t kSpareBlocks = 8;
constexpr std::chrono::microseconds kMoment(20);
constexpr size_t kLeastBlock = size_t{64} << 10;

size_t RoundUp(size_t bytes) {
  size_t size = kLeastBlock;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

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

PinnedMemory::Block PinnedMemory::Take(Device* device, size_t bytes) {
  Trim();
  const size_t size = RoundUp(bytes);
  Block block;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(spare_.begin(), spare_.end(), [&](const Block& it) { return it.bytes == size; });
    if (found != spare_.end()) {
      block = std::move(*found);
      spare_.erase(found);
    }
  }
  if (block.busy) {
    const Device::Scope scope(*block.device);
    block.device->Check(block.device->cuda().event_wait(block.busy->event()), "wait for");
    block.busy.reset();
  }
  if (block.data) return block;
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

// What is done a moment later need not be waited for by the stream, which might have to wait for its turn.
void Devices::LetWait(int ordinal, uint64_t stream) {
  Device* const device = Use(ordinal);
  const Device::Scope scope(*device);
  const auto until = std::chrono::steady_clock::now() + kMoment;
  do {
    if (device->IsIdle(device->taking())) return;
  } while (std::chrono::steady_clock::now() < until);
  const DeviceMark mark(device, device->Mark(device->taking()));
  device->WaitFor(mark.event(), reinterpret_cast<CudaStream>(stream));
}

void Devices::Drain(std::chrono::steady_clock::time_point until) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [ordinal, device] : devices_) {
    if (!device) continue;
    try {
      const Device::Scope scope(*device);
      while (device->IsBusy()) {
        if (std::chrono::steady_clock::now() > until) {
          device->Abandon();
          break;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    } catch (const DeviceError&) {
    }
  }
}

void Devices::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  worker_.reset();
}

}  // namespace hvd
