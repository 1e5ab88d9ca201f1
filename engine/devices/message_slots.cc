// SPDX-License-Identifier: Apache-2.0
#include "devices/message_slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd {

std::string MessageSlots::Card::Encode() const {
  return std::string(reinterpret_cast<const char*>(this), sizeof *this);
}

bool MessageSlots::Card::Decode(std::string_view bytes, Card* card) {
  if (bytes.size() != sizeof *card) return false;
  std::memcpy(card, bytes.data(), sizeof *card);
  return card->slot_bytes > 0 && card->slots > 0;
}

std::shared_ptr<MessageSlots> MessageSlots::Make(Devices* devices, Device* device, int slots, size_t slot_bytes) {
  return Begin(devices, std::shared_ptr<MessageSlots>(
                            new MessageSlots(device, true, {{}, slot_bytes, static_cast<uint64_t>(slots)})));
}

std::shared_ptr<MessageSlots> MessageSlots::Map(Devices* devices, Device* device, const Card& card) {
  return Begin(devices, std::shared_ptr<MessageSlots>(new MessageSlots(device, false, card)));
}

std::shared_ptr<MessageSlots> MessageSlots::Begin(Devices* devices, std::shared_ptr<MessageSlots> slots) {
  devices->worker().Put([slots] { slots->Open(); });
  return slots;
}

void MessageSlots::Open() {
  try {
    const Device::Scope scope(*device_);
    const Cuda& cuda = device_->cuda();
    if (own_) {
      base_ = device_->Allocate(card_.slots * card_.slot_bytes);
      device_->Check(cuda.memory_export(&card_.memory, base_), "share memory of");
    } else {
      device_->Check(cuda.memory_import(&base_, card_.memory, kCudaPeerAccess), "reach another rank's memory from");
    }
  } catch (const DeviceError& error) {
    why_not_ = error.what();
  }
  settled_.store(true, std::memory_order_release);
}

MessageSlots::Piece MessageSlots::Fill(uint64_t index, const std::byte* tensor, size_t left) const {
  return Copy(At(index), AddressOf(tensor), left);
}

MessageSlots::Piece MessageSlots::Empty(uint64_t index, std::byte* tensor, size_t left) const {
  return Copy(AddressOf(tensor), At(index), left);
}

MessageSlots::Piece MessageSlots::Copy(CudaAddress to, CudaAddress from, size_t left) const {
  const size_t length = std::min(left, static_cast<size_t>(card_.slot_bytes));
  const Device::Scope scope(*device_);
  device_->CopyOn(to, from, length, device_->messages());
  return {DeviceMark::OfMessages(device_), length};
}

MessageSlots::~MessageSlots() {
  if (!base_ || device_->abandoned()) return;
  try {
    const Device::Scope scope(*device_);
    own_ ? device_->cuda().memory_free(base_) : device_->cuda().memory_unmap(base_);
  } catch (const DeviceError&) {
  }
}

}  // namespace hvd
