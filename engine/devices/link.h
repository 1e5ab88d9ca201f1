// SPDX-License-Identifier: Apache-2.0
// How the members of a process set reach each other's memory on a device. Each has an arena there: a few slots, mapped
// by all others, and three events for each slot that all others hold. "Filled": its tensors are in the slot. "Reduced":
// this member has put sums of all members' slots into its own. "Taken": it has copied what it wanted from others' slots.
// An event that was never recorded keeps nobody waiting, so nobody waits for one before its recorder has said, on the
// host, that it is recorded.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.h"

namespace hvd {

constexpr int kMostDeviceSlots = 8;
enum DeviceEvent : int { kFilled, kReduced, kTaken };
constexpr int kEventKinds = 3;

class DeviceLink {
 public:
  // What a member tells the others of itself.
  struct Passport {
    CudaUuid uuid;
    CudaHandle memory;
    CudaHandle events[kEventKinds][kMostDeviceSlots];
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
  size_t slot_bytes() const { return slot_bytes_; }
  CudaAddress SlotOf(int member, int slot) const {
    return arenas_[static_cast<size_t>(member)] + static_cast<size_t>(slot) * slot_bytes_;
  }

  // Chunks go through the slots in turn, whatever machine they belong to. What a chunk's slot was used for last is over
  // when all others have released these indices of the lanes.
  struct Use {
    uint64_t there = 0, back = 0;
    bool any = false;
  };
  struct Turn {
    uint64_t filled = 0, reduced = 0, taken = 0;  // chunks so far
  };
  Turn turn;
  Use& UseOf(int slot) { return uses_[slot]; }
  int SlotAt(uint64_t chunk) const { return static_cast<int>(chunk % static_cast<uint64_t>(slots_)); }

  // Whether all members are on this very device.
  bool one_device() const { return one_device_; }

  // These want a Scope.
  void Record(DeviceEvent what, int slot, CudaStream stream) const { device_->Record(Of(me_, what, slot), stream); }
  void Await(int member, DeviceEvent what, int slot, CudaStream stream) const {
    device_->WaitFor(Of(member, what, slot), stream);
  }

 private:
  struct Events {
    CudaEvent all[kEventKinds][kMostDeviceSlots] = {};
  };
  CudaEvent Of(int member, DeviceEvent what, int slot) const {
    return events_[static_cast<size_t>(member)].all[what][slot];
  }

  Device* device_;
  int members_, me_, slots_;
  size_t slot_bytes_;
  std::vector<CudaAddress> arenas_;  // by member
  std::vector<Events> events_;  // by member
  bool one_device_ = true;
  Use uses_[kMostDeviceSlots];
  Passport passport_{};
  std::string why_not_;
};

}  // namespace hvd
