// SPDX-License-Identifier: Apache-2.0
#include "devices/region.h"

#include <unistd.h>

#include <algorithm>

namespace hvd {
namespace {

// Granularity of exported memory: the driver cuts small allocations from larger blocks and would export the whole
// block.
constexpr size_t kExported = size_t{2} << 20;

size_t WholeBlocks(size_t bytes) { return std::max(kExported, (bytes + kExported - 1) / kExported * kExported); }

}  // namespace

DeviceRegion::DeviceRegion(Device* device, int64_t number, size_t bytes)
    : cuda_(device->cuda()), ordinal_(device->ordinal()), number_(number), bytes_(bytes), process_(getpid()) {
  const Device::Scope scope(*device);
  device->Check(cuda_.device_get(&device_, ordinal_), "find");
  address_ = device->Allocate(bytes_);
  int result = cuda_.memory_export(&handle_, address_);
  if (result == kCudaSuccess) result = cuda_.context_retain(&context_, device_);
  if (result != kCudaSuccess) cuda_.memory_free(address_);
  device->Check(result, "share memory of");
}

DeviceRegion::~DeviceRegion() {
  if (abandoned_.load() || process_ != getpid()) return;
  if (cuda_.context_push(context_) == kCudaSuccess) {
    int mode = kCudaCaptureRelaxed;  // mode that Device::Scope would set
    cuda_.capture_mode(&mode);
    cuda_.memory_free(address_);  // this call waits for all work that is on streams
    cuda_.capture_mode(&mode);
    CudaContext before;
    cuda_.context_pop(&before);
  }
  cuda_.context_release(device_);
}

DeviceRegions::~DeviceRegions() {
  for (auto& [device, regions] : regions_) {
    for (auto& region : regions) {
      if (device->abandoned()) region->Abandon();
    }
  }
}

void DeviceRegions::Share(int process_set, Device* device) {
  std::lock_guard<std::mutex> lock(mutex_);
  shared_[process_set] = device;
}

void DeviceRegions::Unshare(int process_set) {
  std::lock_guard<std::mutex> lock(mutex_);
  shared_.erase(process_set);
}

// Return the smallest region of sufficient size that has no owner any more.
std::shared_ptr<DeviceRegion> DeviceRegions::FindSpare(int ordinal, size_t bytes) {
  std::shared_ptr<DeviceRegion> best;
  for (auto& [device, regions] : regions_) {
    if (device->ordinal() != ordinal) continue;
    for (auto& region : regions) {
      const bool spare = region.use_count() == 1;
      if (spare && region->bytes() >= bytes && (!best || region->bytes() < best->bytes())) best = region;
    }
  }
  return best;
}

std::shared_ptr<DeviceRegion> DeviceRegions::Allocate(int process_set, int ordinal, size_t bytes) {
  bytes = WholeBlocks(bytes);
  Device* device = nullptr;
  int64_t number = 0;
  std::shared_ptr<DeviceRegion> spare;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = shared_.find(process_set);
    if (found == shared_.end() || found->second->ordinal() != ordinal || bytes > DevicePlace::kMostBytes)
      return nullptr;
    device = found->second;
    spare = FindSpare(ordinal, bytes);
    if (!spare) number = numbers_++;
  }
  if (spare) {  // streams may still be using the previous tensors
    const Device::Scope scope(*device);
    device->Check(device->cuda().context_synchronize(), "wait for");
    return spare;
  }
  auto region = std::make_shared<DeviceRegion>(device, number, bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  regions_[device].push_back(region);
  return region;
}

int64_t DeviceRegions::PlaceOf(const void* data, size_t bytes) {
  const auto address = AddressOf(data);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [device, regions] : regions_) {
    for (const auto& region : regions) {
      if (address < region->address() || bytes > region->bytes()) continue;
      const size_t offset = address - region->address();
      if (offset > region->bytes() - bytes) continue;
      return offset % kUnit ? -1 : (region->number() << DevicePlace::kOffsetBits) + static_cast<int64_t>(offset);
    }
  }
  return -1;
}

std::shared_ptr<DeviceRegion> DeviceRegions::Find(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [device, regions] : regions_) {
    for (const auto& region : regions) {
      if (region->number() == number) return region;
    }
  }
  return nullptr;
}

}  // namespace hvd
