// SPDX-License-Identifier: Apache-2.0
// Device memory for tensors that other ranks may map. It outlives its world, because it is freed with the last tensor
// in it. While the world lives it is kept even then, because other ranks have it mapped; it is reused for the next
// request of that size.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/device.h"

namespace hvd {

class DeviceRegion {
 public:
  // Allocate and export the memory. This is slow and throws DeviceError.
  DeviceRegion(Device* device, int64_t number, size_t bytes);
  ~DeviceRegion();
  DeviceRegion(const DeviceRegion&) = delete;
  DeviceRegion& operator=(const DeviceRegion&) = delete;

  int64_t number() const { return number_; }
  CudaAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }
  const CudaHandle& handle() const { return handle_; }
  int ordinal() const { return ordinal_; }
  // Leave the memory allocated until the process ends; see Device::Abandon.
  void Abandon() { abandoned_.store(true); }

 private:
  const Cuda& cuda_;  // not reached through the Device object, which may be destroyed earlier
  const int ordinal_;
  const int64_t number_;
  const size_t bytes_;
  const pid_t process_;  // a forked child must not free device memory
  int device_ = 0;
  CudaContext context_ = nullptr;
  CudaAddress address_ = 0;
  CudaHandle handle_{};
  std::atomic<bool> abandoned_{false};
};

// Location of a tensor: the number of a region of its owner, and the offset in it.
struct DevicePlace {
  static constexpr int kOffsetBits = 40;
  static constexpr size_t kMostBytes = size_t{1} << kOffsetBits;
  int64_t number;
  size_t offset;

  static DevicePlace Of(int64_t place) { return {place >> kOffsetBits, static_cast<size_t>(place) & (kMostBytes - 1)}; }
};

// Regions that this process has created in one world. Any thread may use them.
class DeviceRegions {
 public:
  DeviceRegions() = default;
  ~DeviceRegions();
  DeviceRegions(const DeviceRegions&) = delete;
  DeviceRegions& operator=(const DeviceRegions&) = delete;

  // Record that the members of a process set share `device`, so that regions are useful to them.
  void Share(int process_set, Device* device);
  void Unshare(int process_set);
  // Return a region of at least `bytes`, or null unless the set's members are known to share the device. It belongs to
  // the caller until the caller drops it. This is slow and throws DeviceError.
  std::shared_ptr<DeviceRegion> Allocate(int process_set, int ordinal, size_t bytes);
  // Return the location of `data`, or -1 if it is in no region or not aligned to kUnit bytes.
  int64_t PlaceOf(const void* data, size_t bytes);
  std::shared_ptr<DeviceRegion> Find(int64_t number);

 private:
  std::shared_ptr<DeviceRegion> FindSpare(int ordinal, size_t bytes);

  std::mutex mutex_;  // guards the members below
  std::map<int, Device*> shared_;
  std::map<Device*, std::vector<std::shared_ptr<DeviceRegion>>> regions_;
  int64_t numbers_ = 0;
};

}  // namespace hvd
