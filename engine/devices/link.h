// SPDX-License-Identifier: Apache-2.0
// How the members of a process set reach each other's memory on a device. Each has an arena there: a few slots, mapped
// by all others, and two events for each slot that all others hold. "Gathered": the slot is full. "Read": its owner has
// read what it wanted from everybody's slot. An event that was never recorded keeps nobody waiting, so nobody waits for
// one before its recorder has said, on the host, that it is recorded.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.h"

namespace hvd {

constexpr int kMostDeviceSlots = 8;

class DeviceLink {
 public:
  // What a member tells the others of itself.
  struct Passport {
    CudaUuid uuid;
    CudaHandle memory;
    CudaHandle gathered[kMostDeviceSlots], read[kMostDeviceSlots];
    uint32_t slots, slot_kilobytes;
    uint32_t usable;
    char why_not[128];
  };

  DeviceLink(Device* device, int members, int me, int slots, size_t slot_bytes);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Both are slow. Neither throws: what went wrong is in the passport, and in `why_not`.
  void Open();
  void Map(const std::vector<Passport>& all);

  Passport& passport() { return passport_; }
  const std::string& why_not() const { return why_not_; }  // empty: all members' memory is reached
  Device& device() const { return *device_; }
  int slots() const { return slots_; }
  int SlotAt(uint64_t index) const { return static_cast<int>(index % static_cast<uint64_t>(slots_)); }
  size_t slot_bytes() const { return slot_bytes_; }
  CudaAddress SlotOf(int member, int slot) const {
    return arenas_[static_cast<size_t>(member)] + static_cast<size_t>(slot) * slot_bytes_;
  }

  // All of these put something on a stream, and want a Scope.

  // Before this member fills a slot: all have read what was there.
  void AwaitReaders(int slot, CudaStream stream) const;
  void Gathered(int slot, CudaStream stream) {
    filled_by_[slot] = stream;
    device_->Record(events_[static_cast<size_t>(me_)].gathered[slot], stream);
  }
  // Before this member reads the slot of one, itself included.
  void AwaitWriter(int member, int slot) const;
  void Read(int slot);

  // Waits, on the host, until the device is done with all that members have said to read from each other.
  void AwaitAllRead(std::chrono::steady_clock::time_point until) const;

 private:
  struct Events {
    CudaEvent gathered[kMostDeviceSlots] = {}, read[kMostDeviceSlots] = {};
  };

  Device* device_;
  int members_, me_, slots_;
  size_t slot_bytes_;
  std::vector<CudaAddress> arenas_;  // by member
  CudaStream filled_by_[kMostDeviceSlots] = {};
  std::vector<Events> events_;       // by member
  bool used_[kMostDeviceSlots] = {};
  Passport passport_{};
  std::string why_not_;
};

}  // namespace hvd
