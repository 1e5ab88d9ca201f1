// SPDX-License-Identifier: Apache-2.0
// Members of a set that share this member's GPU, and the link between them through GPU memory. This member may be the
// only one.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "collectives/on_device.h"

namespace hvd {

class GpuMates {
 public:
  // `lane` connects these members, in ascending order; it is null if they share no host memory.
  GpuMates(Devices* devices, Device* device, std::shared_ptr<Lane> lane, size_t slot_bytes);

  // Make progress. After kDone, either the link exists or `why_not` is the reason; the result is equal on all members.
  Machine::Step Advance();
  const std::string& why_not() const { return why_not_; }
  // Return the link; valid if it exists.
  const std::shared_ptr<DeviceLink>& link() const { return meeting_->link(); }
  DeviceSlots* slots() const { return meeting_->slots(); }

  // Release the streams that wait for a member, because a member is lost.
  void LetGo() const;
  // Wait until no member reads this member's memory any more, at most until `until`.
  void AwaitOthers(std::chrono::steady_clock::time_point until) const;
  // Release the link on the worker thread once the device is idle, at the latest at `until`. No method may be called
  // afterwards.
  void LeaveLater(std::chrono::steady_clock::time_point until);

 private:
  Devices* devices_;
  std::shared_ptr<Lane> lane_;  // holds the flags of the link
  std::unique_ptr<DeviceMeeting> meeting_;
  std::string why_not_;
};

}  // namespace hvd
