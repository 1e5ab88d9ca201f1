// SPDX-License-Identifier: Apache-2.0
// GPU memory through which messages travel between two ranks of one host: a few slots, which the sender fills and the
// receiver, which has mapped them, empties. So tensors may lie in any memory, and no rank keeps another's tensors
// mapped; mapped memory would not become free when its owner frees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "devices/devices.h"

namespace hvd {

class MessageSlots {
 public:
  // Handle by which other ranks of the host map the slots.
  struct Card {
    CudaHandle memory;
    uint64_t slot_bytes, slots;

    std::string Encode() const;
    static bool Decode(std::string_view bytes, Card* card);
  };

  // Copy that was put on the device's stream for messages.
  struct Piece {
    std::shared_ptr<DeviceMark> mark;
    size_t length;
  };

  // Make allocates the slots for the sender, and Map maps them for the receiver. Both are slow and run on the worker.
  static std::shared_ptr<MessageSlots> Make(Devices* devices, Device* device, int slots, size_t slot_bytes);
  static std::shared_ptr<MessageSlots> Map(Devices* devices, Device* device, const Card& card);
  ~MessageSlots();
  MessageSlots(const MessageSlots&) = delete;
  MessageSlots& operator=(const MessageSlots&) = delete;

  Device* device() const { return device_; }
  // Return true once the slots are ready or have failed; the getters below are valid from then on.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  const std::string& why_not() const { return why_not_; }  // returns an empty text if the slots are ready
  const Card& card() const { return card_; }
  // Fill copies from the tensor to a slot, and Empty copies back: as many of the `left` bytes as a slot holds.
  Piece Fill(uint64_t index, const std::byte* tensor, size_t left) const;
  Piece Empty(uint64_t index, std::byte* tensor, size_t left) const;

 private:
  MessageSlots(Device* device, bool own, const Card& card) : device_(device), own_(own), card_(card) {}
  static std::shared_ptr<MessageSlots> Begin(Devices* devices, std::shared_ptr<MessageSlots> slots);
  void Open();
  CudaAddress At(uint64_t index) const { return base_ + index % card_.slots * card_.slot_bytes; }
  Piece Copy(CudaAddress to, CudaAddress from, size_t left) const;

  Device* const device_;
  const bool own_;
  Card card_;
  CudaAddress base_ = 0;
  std::string why_not_;
  std::atomic<bool> settled_{false};
};

}  // namespace hvd
