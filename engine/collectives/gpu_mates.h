// SPDX-License-Identifier: Apache-2.0
// The members of a set that share this member's GPU, as it reaches them: through memory there. Maybe none but itself.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "collectives/on_device.h"

namespace hvd {

class GpuMates {
 public:
  // `lane`: between them, this member's GPU's first member first; null: they share no memory of the host.
  GpuMates(Devices* devices, Device* device, std::shared_ptr<Lane> lane, size_t slot_bytes);

  // kDone: the link is there, or `why_not` says why it is not. All of them come to the same.
  Machine::Step Advance();
  const std::string& why_not() const { return why_not_; }
  // If they reach each other:
  const std::shared_ptr<DeviceLink>& link() const { return meeting_->link(); }
  DeviceSlots* slots() const { return meeting_->slots(); }

  // A member is lost: no stream waits for one any longer.
  void LetGo() const;
  // Until nobody reads from this member's memory any more, or until then.
  void AwaitOthers(std::chrono::steady_clock::time_point until) const;
  // Gives up what is left on a thread for that, once the device has done what is there, or then. Nothing else may be
  // asked for afterwards.
  void LeaveLater(std::chrono::steady_clock::time_point until);

 private:
  Devices* devices_;
  std::shared_ptr<Lane> lane_;  // the link's flags lie in it
  std::unique_ptr<DeviceMeeting> meeting_;
  std::string why_not_;
};

}  // namespace hvd
