// SPDX-License-Identifier: Apache-2.0
#include "collectives/device_slots.h"

#include <algorithm>
#include <thread>

namespace hvd {

CudaAddress DeviceSlots::BeginFill(CudaStream stream) {
  const uint64_t index = lane_.posted();
  const int slot = SlotAt(index);
  if (index >= first_ + slots()) {
    for (int j = 0; j < lane_.members(); ++j) {
      // Work that this member put on this stream earlier runs first anyway.
      if (j == lane_.me() && stream_of_[static_cast<size_t>(slot)] == stream) continue;
      link_.AwaitFlag(j, DeviceLink::kRead, slot, ValueAt(index - slots()), stream);
    }
  }
  return link_.SlotOf(lane_.me(), slot);
}

void DeviceSlots::EndFill(CudaStream stream) {
  link_.RaiseFlag(DeviceLink::kFilled, SlotAt(lane_.posted()), ValueAt(lane_.posted()), stream);
  lane_.PostNothing(1);
}

CudaAddress DeviceSlots::BeginRead(int member, CudaStream stream) {
  const uint64_t index = lane_.released();
  const int slot = SlotAt(index);
  if (member != lane_.me()) link_.AwaitFlag(member, DeviceLink::kFilled, slot, ValueAt(index), stream);
  return link_.SlotOf(member, slot);
}

void DeviceSlots::EndRead(CudaStream stream) {
  const uint64_t index = lane_.released();
  link_.RaiseFlag(DeviceLink::kRead, SlotAt(index), ValueAt(index), stream);
  stream_of_[static_cast<size_t>(SlotAt(index))] = stream;
  lane_.Release();
}

void DeviceSlots::AwaitRead(int member, CudaStream stream) const {
  const uint64_t index = lane_.released();
  link_.AwaitFlag(member, DeviceLink::kRead, SlotAt(index), ValueAt(index), stream);
}

bool DeviceSlots::AllRead() const {
  if (!lane_.AllReleased()) return false;
  const uint64_t end = lane_.released();
  for (uint64_t index = std::max(first_, end > slots() ? end - slots() : 0); index < end; ++index) {
    for (int j = 0; j < lane_.members(); ++j) {
      if (!link_.IsRaised(j, DeviceLink::kRead, SlotAt(index), ValueAt(index))) return false;
    }
  }
  return true;
}

void DeviceSlots::AwaitAllRead(std::chrono::steady_clock::time_point until) const {
  while (!AllRead() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace hvd
