// SPDX-License-Identifier: Apache-2.0
// How the members of a process set reach each other's memory on a device. Each has an arena there, a few slots, mapped
// by all others; and flags for each slot in a page of the host's shared memory, which streams of all members' devices
// write and wait for, and hosts look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.h"

namespace hvd {

class DeviceLink {
 public:
  // The members' pages of flags; a page of its own for each, on a border.
  static constexpr size_t kPageBytes = 4096;
  static constexpr int kMostSlots = 64;
  enum Flag { kFilled, kRead };

  // What a member tells the others of itself.
  struct Passport {
    CudaUuid uuid;
    CudaHandle memory;
    uint32_t slots, slot_kilobytes;
    uint32_t usable;
    uint32_t runs_together;
    char why_not[128];
  };

  // `pages`: by member. Our own is cleared when it is opened.
  DeviceLink(Device* device, std::vector<std::byte*> pages, int me, int slots, size_t slot_bytes);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Both are slow. Neither throws: what went wrong is in the passport, and in `why_not`.
  void Open();
  void Map(const std::vector<Passport>& all);

  Passport& passport() { return passport_; }
  const std::string& why_not() const { return why_not_; }  // empty: all members' memory is reached
  bool on_one_device() const { return on_one_device_; }    // then: and all of it is on the same
  // There the members' work runs side by side, as all of them are told.
  bool runs_together() const { return on_one_device_ && runs_together_; }
  Device& device() const { return *device_; }
  int members() const { return members_; }
  int me() const { return me_; }
  size_t slot_bytes() const { return slot_bytes_; }
  CudaAddress SlotOf(int member, int slot) const {
    return arenas_[static_cast<size_t>(member)] + static_cast<size_t>(slot) * slot_bytes_;
  }

  // Values grow, and may wrap around.
  bool IsRaised(int member, Flag flag, int slot, uint32_t value) const;
  // Both put something on the stream, and want a Scope.
  void RaiseFlag(Flag flag, int slot, uint32_t value, CudaStream stream) const;
  void AwaitFlag(int member, Flag flag, int slot, uint32_t value, CudaStream stream) const;

  // Whoever waits for this value, or for one not far from it, waits no longer: a member is lost.
  void LetGo(uint32_t value) const;

 private:
  size_t OffsetOf(Flag flag, int slot) const {
    return (static_cast<size_t>(flag) * kMostSlots + static_cast<size_t>(slot)) * sizeof(uint32_t);
  }
  volatile uint32_t* FlagOf(int member, Flag flag, int slot) const {
    return reinterpret_cast<volatile uint32_t*>(pages_[static_cast<size_t>(member)] + OffsetOf(flag, slot));
  }
  void MapPage(int member);

  Device* device_;
  std::vector<std::byte*> pages_;
  int members_, me_, slots_;
  size_t slot_bytes_;
  std::vector<CudaAddress> arenas_, flags_;  // by member: as the device reaches them
  Passport passport_{};
  bool runs_together_ = true;
  std::string why_not_;
  bool on_one_device_ = true;
};

}  // namespace hvd
