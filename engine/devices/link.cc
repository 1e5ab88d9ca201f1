// SPDX-License-Identifier: Apache-2.0
#include "devices/link.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace hvd {
namespace {

constexpr uint32_t kFarAhead = uint32_t{1} << 30;

// Return true if `have` has reached `wanted`. Values may wrap around; the device compares them in this way too.
bool Reaches(uint32_t have, uint32_t wanted) { return static_cast<int32_t>(have - wanted) >= 0; }

}  // namespace

DeviceLink::DeviceLink(Device* device, std::vector<std::byte*> pages, int me, int slots, size_t slot_bytes)
    : device_(device),
      pages_(std::move(pages)),
      members_(static_cast<int>(pages_.size())),
      me_(me),
      slots_(slots),
      slot_bytes_(slot_bytes),
      arenas_(pages_.size(), 0),
      flags_(pages_.size(), 0) {}

void DeviceLink::MapPage(int member) {
  std::byte* const page = pages_[static_cast<size_t>(member)];
  const Cuda& cuda = device_->cuda();
  device_->Check(cuda.host_register(page, kPageBytes, kCudaHostPortable | kCudaHostMapped), "share a page with");
  device_->Check(cuda.host_address(&flags_[static_cast<size_t>(member)], page, 0), "find a page of");
}

void DeviceLink::Open() {
  try {
    const Device::Scope scope(*device_);
    device_->LoadKernels();
    std::memset(pages_[static_cast<size_t>(me_)], 0, kPageBytes);
    passport_.uuid = device_->uuid();
    passport_.runs_together = device_->runs_together();
    passport_.slots = static_cast<uint32_t>(slots_);
    passport_.slot_kilobytes = static_cast<uint32_t>(slot_bytes_ >> 10);
    CudaAddress& arena = arenas_[static_cast<size_t>(me_)];
    arena = device_->Allocate(slot_bytes_ * static_cast<size_t>(slots_));
    device_->Check(device_->cuda().memory_export(&passport_.memory, arena), "share memory of");
    MapPage(me_);
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
    for (int j = 0; j < members_; ++j) {
      const Passport& theirs = all[static_cast<size_t>(j)];
      if (!theirs.usable)
        throw DeviceError(std::string(theirs.why_not, strnlen(theirs.why_not, sizeof theirs.why_not)));
      runs_together_ = runs_together_ && theirs.runs_together;
      if (j == me_) continue;
      if (theirs.slots != passport_.slots || theirs.slot_kilobytes != passport_.slot_kilobytes)
        throw DeviceError("ranks have arenas of different sizes");
      if (std::memcmp(&theirs.uuid, &passport_.uuid, sizeof theirs.uuid) != 0) on_one_device_ = false;
      device_->Check(device_->cuda().memory_import(&arenas_[static_cast<size_t>(j)], theirs.memory, kCudaPeerAccess),
                     "reach another rank's memory from");
      MapPage(j);
    }
  } catch (const DeviceError& error) {
    why_not_ = error.what();
  }
}

DeviceLink::~DeviceLink() {
  if (device_->abandoned()) return;
  try {
    const Device::Scope scope(*device_);
    const Cuda& cuda = device_->cuda();
    for (int j = 0; j < members_; ++j) {
      const CudaAddress arena = arenas_[static_cast<size_t>(j)];
      if (arena) j == me_ ? cuda.memory_free(arena) : cuda.memory_unmap(arena);
      if (flags_[static_cast<size_t>(j)]) cuda.host_unregister(pages_[static_cast<size_t>(j)]);
    }
  } catch (const DeviceError&) {
  }
}

void DeviceLink::RaiseFlag(Flag flag, int slot, uint32_t value, CudaStream stream) const {
  const CudaAddress at = flags_[static_cast<size_t>(me_)] + OffsetOf(flag, slot);
  device_->Check(device_->cuda().stream_write_value(stream, at, value, 0), "order work on");
}

bool DeviceLink::IsRaised(int member, Flag flag, int slot, uint32_t value) const {
  return Reaches(*FlagOf(member, flag, slot), value);
}

// Skip the wait if the flag has been raised, because a stream that waits gives up its process's time slice on the
// device.
void DeviceLink::AwaitFlag(int member, Flag flag, int slot, uint32_t value, CudaStream stream) const {
  if (IsRaised(member, flag, slot, value)) return;
  const CudaAddress at = flags_[static_cast<size_t>(member)] + OffsetOf(flag, slot);
  device_->Check(device_->cuda().stream_wait_value(stream, at, value, kCudaWaitReaches), "order work on");
}

void DeviceLink::LetGo(uint32_t value) const {
  for (int j = 0; j < members_; ++j) {
    for (int slot = 0; slot < slots_; ++slot) {
      for (Flag flag : {kFilled, kRead}) *FlagOf(j, flag, slot) = value + kFarAhead;
    }
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace hvd
