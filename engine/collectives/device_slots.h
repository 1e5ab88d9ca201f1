// SPDX-License-Identifier: Apache-2.0
// Which slots of the members' arenas on a device are full, and which have been read. A lane's indices tell it: a member
// posts an index when the device is done with filling its slot, and releases it when the device is done with reading
// those of all. So nobody's stream ever waits for another process, and a process that dies leaves none that does.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "devices/devices.h"
#include "transport/lane.h"

namespace hvd {

class DeviceSlots {
 public:
  DeviceSlots(Device* device, Lane* lane) : device_(device), lane_(lane) {}

  // All of these want a Scope of the device.

  // Says what the device has done since; true if there was anything to say.
  bool Tell();
  // All have read what was in the slot that comes next; our own reading comes before, on the same stream.
  bool MayFill() const { return next_filled() - next_read() < slots() && lane_->CanPost(filling_.size()); }
  int SlotToFill() const { return static_cast<int>(next_filled() % slots()); }
  // By what has just been launched, or by nothing at all.
  void Filled(bool by_launch);
  // All others have filled theirs, and ours will be when what is launched now begins.
  bool MayRead() const { return next_read() < next_filled() && lane_->AllPosted(reading_.size()); }
  int SlotToRead() const { return static_cast<int>(next_read() % slots()); }
  void Read();
  // Whether the others know of all that we have filled.
  bool all_told() const { return filling_.empty(); }

  // Until nobody reads from our slots any more, and we from none. `until`: others may be lost.
  void AwaitAllRead(std::chrono::steady_clock::time_point until);

 private:
  using Marks = std::deque<std::unique_ptr<DeviceMark>>;  // null: nothing to wait for

  uint64_t slots() const { return static_cast<uint64_t>(lane_->slots()); }
  uint64_t next_filled() const { return lane_->posted() + filling_.size(); }
  uint64_t next_read() const { return lane_->released() + reading_.size(); }

  Device* device_;
  Lane* lane_;
  Marks filling_, reading_;  // launched, and not told of
};

}  // namespace hvd
