// SPDX-License-Identifier: Apache-2.0
// How the members of a process set reach each other's memory on a device: each has an arena there, a few slots, mapped
// by all others.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.h"

namespace hvd {

class DeviceLink {
 public:
  // What a member tells the others of itself.
  struct Passport {
    CudaUuid uuid;
    CudaHandle memory;
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
  int members() const { return members_; }
  int me() const { return me_; }
  size_t slot_bytes() const { return slot_bytes_; }
  CudaAddress SlotOf(int member, int slot) const {
    return arenas_[static_cast<size_t>(member)] + static_cast<size_t>(slot) * slot_bytes_;
  }

 private:
  Device* device_;
  int members_, me_, slots_;
  size_t slot_bytes_;
  std::vector<CudaAddress> arenas_;  // by member
  Passport passport_{};
  std::string why_not_;
};

}  // namespace hvd
