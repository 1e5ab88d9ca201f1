// SPDX-License-Identifier: Apache-2.0
// Shared memory for the fast path of one process set: buffers in which a member shows its bytes to the others, and a
// counter of the parts that it has written into their outputs. Parts in shared memory are numbered by their sender.
// With every part, members tell each other which numbers they no longer need, so that buffers are freed without extra
// messages.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

struct ExpressHead {
  alignas(64) std::atomic<uint64_t> delivered;  // number of the last part that the owner has written to all outputs
  alignas(64) std::byte buffers[1];
};

class ExpressMemory {
 public:
  static constexpr size_t kBufferBytes = size_t{64} << 10;
  static constexpr size_t kBuffers = 2;
  static constexpr size_t kBytes = 4096 + kBuffers * kBufferBytes;  // size of this memory in each member's arena

  // heads[j] is the address of member j's memory; null: it shares no memory with us, and bytes are sent to it.
  ExpressMemory(std::vector<ExpressHead*> heads, size_t me)
      : heads_(std::move(heads)), me_(me), acknowledged_(heads_.size(), 0), theirs_(heads_.size()) {}

  // Return the buffer for our next part, or nullptr while a member may still read it. This rank counts too: others may
  // have all parts of a round and be done with ours while we still lack one of theirs.
  std::byte* FreeBuffer() const {
    const uint64_t next = number_ + 1;
    for (size_t j = 0; j < heads_.size(); ++j) {
      const uint64_t done_with = j == me_ ? GoneUpTo(me_) : acknowledged_[j];
      if (heads_[j] && done_with < holds_[next % kBuffers]) return nullptr;
    }
    return heads_[me_]->buffers + next % kBuffers * kBufferBytes;
  }
  // Return the number of our next part. `in_buffer`: its bytes are in the buffer that FreeBuffer returned. The caller
  // must call Gone(me, number) later.
  uint64_t NextNumber(bool in_buffer) {
    Came(me_, ++number_);
    if (in_buffer) holds_[number_ % kBuffers] = number_;
    return number_;
  }
  void Acknowledged(size_t member, uint64_t number) { acknowledged_[member] = std::max(acknowledged_[member], number); }

  // Came records that a part has arrived or that our own is being sent; Gone records that it is no longer needed.
  void Came(size_t member, uint64_t number) {
    theirs_[member].last = std::max(theirs_[member].last, number);
    theirs_[member].in_use.push_back(number);
  }
  void Gone(size_t member, uint64_t number) {
    std::vector<uint64_t>& in_use = theirs_[member].in_use;
    in_use.erase(std::remove(in_use.begin(), in_use.end(), number), in_use.end());
  }
  // Return the number to report to a member: none of its parts up to this number is needed any more.
  uint64_t GoneUpTo(size_t member) const {
    const Theirs& theirs = theirs_[member];
    if (theirs.in_use.empty()) return theirs.last;
    return *std::min_element(theirs.in_use.begin(), theirs.in_use.end()) - 1;
  }

  void Deliver(uint64_t number) { heads_[me_]->delivered.store(number, std::memory_order_release); }
  bool HasDelivered(size_t member, uint64_t number) const {
    return heads_[member]->delivered.load(std::memory_order_acquire) >= number;
  }

 private:
  struct Theirs {
    uint64_t last = 0;
    std::vector<uint64_t> in_use;
  };

  std::vector<ExpressHead*> heads_;
  size_t me_;
  uint64_t number_ = 0;
  uint64_t holds_[kBuffers] = {};       // number of the part that each buffer holds
  std::vector<uint64_t> acknowledged_;  // acknowledged numbers by member
  std::vector<Theirs> theirs_;
};

}  // namespace hvd
