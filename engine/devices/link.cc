// SPDX-License-Identifier: Apache-2.0
#include "devices/link.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace hvd {

DeviceLink::DeviceLink(Device* device, int members, int me, int slots, size_t slot_bytes)
    : device_(device),
      members_(members),
      me_(me),
      slots_(slots),
      slot_bytes_(slot_bytes),
      arenas_(static_cast<size_t>(members), 0),
      events_(static_cast<size_t>(members)) {}

void DeviceLink::Open() {
  try {
    const Device::Scope scope(*device_);
    const Cuda& cuda = device_->cuda();
    device_->LoadKernels();
    passport_.uuid = device_->uuid();
    passport_.slots = static_cast<uint32_t>(slots_);
    passport_.slot_kilobytes = static_cast<uint32_t>(slot_bytes_ >> 10);
    arenas_[static_cast<size_t>(me_)] = device_->Allocate(slot_bytes_ * static_cast<size_t>(slots_));
    device_->Check(cuda.memory_export(&passport_.memory, arenas_[static_cast<size_t>(me_)]), "share memory of");
    for (int slot = 0; slot < slots_; ++slot) {
      for (auto [event, handle] :
           {std::pair{&events_[static_cast<size_t>(me_)].gathered[slot], &passport_.gathered[slot]},
            std::pair{&events_[static_cast<size_t>(me_)].read[slot], &passport_.read[slot]}}) {
        device_->Check(cuda.event_create(event, kCudaEventShared), "create an event on");
        device_->Check(cuda.event_export(handle, *event), "share an event of");
      }
    }
    passport_.usable = 1;
  } catch (const DeviceError& error) {
    why_not_ = error.what();
    passport_.usable = 0;
    why_not_.copy(passport_.why_not, sizeof passport_.why_not - 1);
  }
}

void DeviceLink::Map(const std::vector<Passport>& all) {
  try {
    const Device::Scope scope(*device_);
    const Cuda& cuda = device_->cuda();
    for (int j = 0; j < members_; ++j) {
      const Passport& theirs = all[static_cast<size_t>(j)];
      if (!theirs.usable)
        throw DeviceError(std::string(theirs.why_not, strnlen(theirs.why_not, sizeof theirs.why_not)));
      if (j == me_) continue;
      if (theirs.slots != passport_.slots || theirs.slot_kilobytes != passport_.slot_kilobytes)
        throw DeviceError("ranks have arenas of different sizes");
      device_->Check(cuda.memory_import(&arenas_[static_cast<size_t>(j)], theirs.memory, kCudaPeerAccess),
                     "reach another rank's memory from");
      Events& events = events_[static_cast<size_t>(j)];
      for (int slot = 0; slot < slots_; ++slot) {
        device_->Check(cuda.event_import(&events.gathered[slot], theirs.gathered[slot]),
                       "see another rank's events from");
        device_->Check(cuda.event_import(&events.read[slot], theirs.read[slot]), "see another rank's events from");
      }
    }
  } catch (const DeviceError& error) {
    why_not_ = error.what();
  }
}

void DeviceLink::AwaitAllRead(std::chrono::steady_clock::time_point until) const {
  try {
    const Device::Scope scope(*device_);
    for (int slot = 0; slot < slots_; ++slot) {
      for (int j = 0; j < members_ && used_[slot]; ++j) {
        const CudaEvent read = events_[static_cast<size_t>(j)].read[slot];
        while (device_->cuda().event_query(read) == kCudaNotReady && std::chrono::steady_clock::now() < until) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      }
    }
  } catch (const DeviceError&) {
  }
}

DeviceLink::~DeviceLink() {
  if (device_->abandoned()) return;
  try {
    const Device::Scope scope(*device_);
    const Cuda& cuda = device_->cuda();
    for (int j = 0; j < members_; ++j) {
      const Events& events = events_[static_cast<size_t>(j)];
      for (int slot = 0; slot < slots_; ++slot) {
        if (events.gathered[slot]) cuda.event_destroy(events.gathered[slot]);
        if (events.read[slot]) cuda.event_destroy(events.read[slot]);
      }
      const CudaAddress arena = arenas_[static_cast<size_t>(j)];
      if (arena) j == me_ ? cuda.memory_free(arena) : cuda.memory_unmap(arena);
    }
  } catch (const DeviceError&) {
  }
}

// A stream that waits for what comes before on itself would give its turn away.
void DeviceLink::AwaitReaders(int slot, CudaStream stream) const {
  if (!used_[slot]) return;
  for (int j = 0; j < members_; ++j) {
    if (j == me_ && stream == device_->taking()) continue;
    device_->WaitFor(events_[static_cast<size_t>(j)].read[slot], stream);
  }
}

void DeviceLink::AwaitWriter(int member, int slot) const {
  if (member == me_ && filled_by_[slot] == device_->taking()) return;
  device_->WaitFor(events_[static_cast<size_t>(member)].gathered[slot], device_->taking());
}

void DeviceLink::Read(int slot) {
  used_[slot] = true;
  device_->Record(events_[static_cast<size_t>(me_)].read[slot], device_->taking());
}

}  // namespace hvd
