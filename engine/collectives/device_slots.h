// SPDX-License-Identifier: Apache-2.0
// Which slots of the members' arenas on a device may be filled and read. The lane's indices tell what has been
// launched, flags what the device has done: streams wait for these, and only ever for what is launched, so they never
// wait in a circle. The flags lie in shared memory of the host: when a rank is lost, those who wait for it are let go.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "devices/link.h"
#include "transport/lane.h"

namespace hvd {

class DeviceSlots {
 public:
  // Indices of the lane before the next one are of no concern.
  DeviceSlots(DeviceLink* link, Lane* lane)
      : link_(*link), lane_(*lane), first_(lane->posted()), stream_of_(static_cast<size_t>(lane->slots())) {}

  // In this order for each slot, with a Scope of the device.

  // All have launched what reads the slot that comes next, this member itself as well.
  bool MayFill() const { return lane_.posted() - lane_.released() < slots() && lane_.CanPost(); }
  // The slot, which what is put on the stream next may fill.
  CudaAddress BeginFill(CudaStream stream);
  void EndFill(CudaStream stream);
  // All have launched what fills theirs.
  bool MayRead() const { return lane_.released() < lane_.posted() && lane_.AllPosted(); }
  // Where a member's slot lies, which what is put on the stream next may read.
  CudaAddress BeginRead(int member, CudaStream stream);
  void EndRead(CudaStream stream);
  // Where one member reads for all: whether another has launched that, from here on to EndRead; and what is put on the
  // stream next comes after it.
  bool HasRead(int member) const { return lane_.HasReleased(member); }
  void AwaitRead(int member, CudaStream stream) const;

  // A member is lost: no stream waits for a slot any longer, and what they do then is of no account.
  void LetGo() const { link_.LetGo(ValueAt(lane_.posted())); }
  // Until nobody reads from our slots any more, and we from none. `until`: others may be lost.
  void AwaitAllRead(std::chrono::steady_clock::time_point until) const;

 private:
  bool AllRead() const;
  uint64_t slots() const { return static_cast<uint64_t>(lane_.slots()); }
  int SlotAt(uint64_t index) const { return static_cast<int>(index % slots()); }
  static uint32_t ValueAt(uint64_t index) { return static_cast<uint32_t>(index + 1); }

  DeviceLink& link_;
  Lane& lane_;
  uint64_t first_;
  std::vector<CudaStream> stream_of_;  // by slot: where this member last read it
};

}  // namespace hvd
