// SPDX-License-Identifier: Apache-2.0
#include "devices/link.h"

#include <algorithm>
#include <cstring>

namespace hvd {

DeviceLink::DeviceLink(Device* device, int members, int me, int slots, size_t slot_bytes)
    : device_(device),
      members_(members),
      me_(me),
      slots_(slots),
      slot_bytes_(slot_bytes),
      arenas_(static_cast<size_t>(members), 0) {}

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
    }
  } catch (const DeviceError&) {
  }
}

}  // namespace hvd
