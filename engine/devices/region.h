// SPDX-License-Identifier: Apache-2.0
// Memory of a device for tensors, which other ranks may map. It outlives its world: it goes with the last tensor in it.
// While the world lives it is kept even then, since others have it mapped, and used for the next that want as much.
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
  // Slow. Throws DeviceError.
  DeviceRegion(Device* device, int64_t number, size_t bytes);
  ~DeviceRegion();
  DeviceRegion(const DeviceRegion&) = delete;
  DeviceRegion& operator=(const DeviceRegion&) = delete;

  int64_t number() const { return number_; }
  CudaAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }
  const CudaHandle& handle() const { return handle_; }
  int ordinal() const { return ordinal_; }
  // It is left to the end of the process: see Device::Abandon.
  void Abandon() { abandoned_.store(true); }

 private:
  const Cuda& cuda_;  // the device itself may be gone before us
  const int ordinal_;
  const int64_t number_;
  const size_t bytes_;
  const pid_t process_;  // a child that was forked has no device
  int device_ = 0;
  CudaContext context_ = nullptr;
  CudaAddress address_ = 0;
  CudaHandle handle_{};
  std::atomic<bool> abandoned_{false};
};

// A tensor's place: which region of its owner's, and where in it.
struct DevicePlace {
  static constexpr int kOffsetBits = 40;
  static constexpr size_t kMostBytes = size_t{1} << kOffsetBits;
  int64_t number;
  size_t offset;

  static DevicePlace Of(int64_t place) { return {place >> kOffsetBits, static_cast<size_t>(place) & (kMostBytes - 1)}; }
};

// Those that this process has made in one world. Any thread.
class DeviceRegions {
 public:
  DeviceRegions() = default;
  ~DeviceRegions();
  DeviceRegions(const DeviceRegions&) = delete;
  DeviceRegions& operator=(const DeviceRegions&) = delete;

  // The members of a process set reach each other's memory on one device, so that regions gain them something.
  void Share(int process_set, Device* device);
  void Unshare(int process_set);
  // A region of at least so many bytes; null unless the set's members are known to share the device. It is the caller's
  // until it drops it. Slow. Throws DeviceError.
  std::shared_ptr<DeviceRegion> Allocate(int process_set, int ordinal, size_t bytes);
  // -1: it is in none, or on no border of kUnit bytes.
  int64_t PlaceOf(const void* data, size_t bytes);
  std::shared_ptr<DeviceRegion> Find(int64_t number);

 private:
  std::shared_ptr<DeviceRegion> FindSpare(int ordinal, size_t bytes);

  std::mutex mutex_;  // guards what follows
  std::map<int, Device*> shared_;
  std::map<Device*, std::vector<std::shared_ptr<DeviceRegion>>> regions_;
  int64_t numbers_ = 0;
};

}  // namespace hvd
