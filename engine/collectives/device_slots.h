// SPDX-License-Identifier: Apache-2.0
// Synchronisation of the slots in the members' arenas on a device. Lane indices show which work has been launched;
// flags show which work the device has done. Streams wait for flags, but only for work that is launched, so they never
// wait in a cycle. The flags lie in shared host memory, so that waiting streams can be released when a rank is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "devices/link.h"
#include "transport/lane.h"

namespace hvd {

class DeviceSlots {
 public:
  // The first index is the next one of the lane; earlier indices are ignored.
  DeviceSlots(DeviceLink* link, Lane* lane)
      : link_(*link), lane_(*lane), first_(lane->posted()), stream_of_(static_cast<size_t>(lane->slots())) {}

  // Call the following methods in this order for each slot, inside a Scope of the device.

  // Return true if all members, including this one, have launched the work that reads the next slot.
  bool MayFill() const { return lane_.posted() - lane_.released() < slots() && lane_.CanPost(); }
  // Return the slot; the work that is put on the stream next may fill it.
  CudaAddress BeginFill(CudaStream stream);
  void EndFill(CudaStream stream);
  // Return true if all members have launched the work that fills their slots.
  bool MayRead() const { return lane_.released() < lane_.posted() && lane_.AllPosted(); }
  // Return the address of a member's slot. The work that is put on the stream next may read it.
  CudaAddress BeginRead(int member, CudaStream stream);
  void EndRead(CudaStream stream);
  // For slots that one member reads on behalf of all. HasRead returns true if `member` has launched that work, up to
  // its EndRead. AwaitRead makes the work that is put on the stream next follow that work.
  bool HasRead(int member) const { return lane_.HasReleased(member); }
  void AwaitRead(int member, CudaStream stream) const;

  // Release all streams that wait for a slot, because a member is lost. The results of the released work are not used.
  void LetGo() const { link_.LetGo(ValueAt(lane_.posted())); }
  // Wait until no member reads this member's slots, and this member reads none, at most until `until`, because other
  // members may be lost.
  void AwaitAllRead(std::chrono::steady_clock::time_point until) const;

 private:
  bool AllRead() const;
  uint64_t slots() const { return static_cast<uint64_t>(lane_.slots()); }
  int SlotAt(uint64_t index) const { return static_cast<int>(index % slots()); }
  static uint32_t ValueAt(uint64_t index) { return static_cast<uint32_t>(index + 1); }

  DeviceLink& link_;
  Lane& lane_;
  uint64_t first_;
  std::vector<CudaStream> stream_of_;  // by slot: the stream on which this member last read it
};

}  // namespace hvd
