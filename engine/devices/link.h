// SPDX-License-Identifier: Apache-2.0
// Access of a process set's members to each other's memory on a device. Each member has an arena there, consisting of a
// few slots, that all others map. For each slot there are flags in a page of shared host memory: streams of all
// members' devices write them and wait for them, and host threads read them.
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
  // Size of a page of flags. Each member has an aligned page.
  static constexpr size_t kPageBytes = 4096;
  static constexpr int kMostSlots = 64;
  enum Flag { kFilled, kRead };

  // Information that a member sends to the others.
  struct Passport {
    CudaUuid uuid;
    CudaHandle memory;
    uint32_t slots, slot_kilobytes;
    uint32_t usable;
    uint32_t runs_together;
    char why_not[128];
  };

  // `pages` are the pages by member. Open clears this member's own.
  DeviceLink(Device* device, std::vector<std::byte*> pages, int me, int slots, size_t slot_bytes);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Open and Map are slow. They do not throw; errors are in the peer info and in `why_not`.
  void Open();
  void Map(const std::vector<Passport>& all);

  Passport& passport() { return passport_; }
  const std::string& why_not() const { return why_not_; }  // empty if all members' memory can be accessed
  bool on_one_device() const { return on_one_device_; }    // valid if why_not() is empty: all memory is on one device
  // Return true if all members report that the device runs their work side by side.
  bool runs_together() const { return on_one_device_ && runs_together_; }
  Device& device() const { return *device_; }
  int members() const { return members_; }
  int me() const { return me_; }
  size_t slot_bytes() const { return slot_bytes_; }
  CudaAddress SlotOf(int member, int slot) const {
    return arenas_[static_cast<size_t>(member)] + static_cast<size_t>(slot) * slot_bytes_;
  }

  // Return true if the flag has reached `value`. A flag's values only grow, and may wrap around.
  bool IsRaised(int member, Flag flag, int slot, uint32_t value) const;
  // Put a write of the flag, or a wait for it, on the stream. Call inside a Scope.
  void RaiseFlag(Flag flag, int slot, uint32_t value, CudaStream stream) const;
  void AwaitFlag(int member, Flag flag, int slot, uint32_t value, CudaStream stream) const;

  // Release all streams that wait for `value` or a value close to it, because a member is lost.
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
  std::vector<CudaAddress> arenas_, flags_;  // addresses on this device, by member
  Passport passport_{};
  bool runs_together_ = true;
  std::string why_not_;
  bool on_one_device_ = true;
};

}  // namespace hvd
