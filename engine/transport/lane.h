// SPDX-License-Identifier: Apache-2.0
// A lane carries a sequence of chunks between the members of a group. At every index each member posts one chunk (maybe
// empty) and looks at the pieces that the others posted for it; all members walk through the same indices in the same
// order, which is all the protocol there is. A peer on the same host reads the poster's slot in shared memory, where it
// lies; towards any other peer the piece goes down a socket. Collectives are written once against this class.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/types.h"
#include "transport/connector.h"

namespace hvd {

// The shared head of a lane in its owner's arena; the slots follow it.
struct LaneHead {
  alignas(64) std::atomic<uint64_t> posted;    // chunks posted by the owner
  alignas(64) std::atomic<uint64_t> released;  // chunks that the owner has done reading, from every member
  alignas(64) std::byte slots[1];
};
constexpr size_t kLaneHeadBytes = 128;

struct LaneOptions {
  int members = 1;
  int me = 0;
  size_t slot_bytes = size_t{256} << 10;
  int slots = 4;
  int streams = 1;
  bool apart = false;  // all members know that no two of them share memory: chunks are whole packets
};

// Less than `bytes`, but as many whole packets: the largest that the kernel makes holds 62,636 to 65,483 bytes of ours,
// depending on the frames that it is cut into later, so 64 KB take two, and packets cost as much as the bytes in them.
inline size_t InPackets(size_t bytes) {
  constexpr size_t kRound = size_t{64} << 10, kPacket = size_t{60} << 10;
  return bytes < kRound ? bytes : bytes / kRound * kPacket;
}

class Lane {
 public:
  enum class Layout { kScatter, kMulticast };  // a piece of its own for each member, or one piece for all

  static size_t BytesNeeded(const LaneOptions& options) {
    return kLaneHeadBytes + options.slot_bytes * static_cast<size_t>(options.slots);
  }

  // heads[j]: member j's head if it is reached by shared memory, else nullptr. heads[me]: own head, or nullptr when
  // no member needs it (the slots are then private). keys[j]: the stream to member j where heads[j] is null.
  // `changed` is called after every post and release, to wake local peers. `connector` may be null where all members
  // are reached by shared memory.
  Lane(const LaneOptions& options, std::vector<LaneHead*> heads, std::vector<StreamKey> keys, Connector* connector,
       std::function<void()> changed);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  int members() const { return options_.members; }
  int me() const { return options_.me; }
  size_t slot_bytes() const { return slot_bytes_; }  // the most that one chunk holds
  bool apart() const { return options_.apart; }
  int slots() const { return static_cast<int>(slots_count_); }  // chunks that may be under way
  // Smaller slots than there is room for, lying closer together. All members must do this at the same index.
  void set_chunk_bytes(size_t bytes);
  // All slots of a member that is reached by memory, or our own.
  std::byte* SlotsOf(int member) const { return member == me() ? slots_ : heads_[static_cast<size_t>(member)]->slots; }
  size_t piece_bytes() const { return piece_bytes_; }  // the most that one member's piece of a scattered chunk holds

  // True when the next slot may be overwritten, or one that comes `ahead` indices after it.
  bool CanPost(uint64_t ahead = 0);
  std::byte* Slot() { return slots_ + (posted_ % slots_count_) * slot_bytes_; }
  // Member j's piece lies at j * piece_bytes() in the slot; lengths[me] is ignored.
  void PostScatter(const size_t* lengths);
  void PostMulticast(size_t length);
  bool in_memory(int member) const { return heads_[member] != nullptr; }  // how it is reached
  bool by_sockets() const { return local_.empty(); }                      // all others are
  // What goes down sockets may be sent from where it lies instead of the slot; it must stay as it is until the lane is
  // idle, or until a member has answered it. Pieces of members in memory lie in the slot, as for PostScatter.
  void PostScatterFrom(const std::byte* const* pieces, const size_t* lengths);
  void PostMulticastFrom(const std::byte* data, size_t length);
  // To one member alone; all others have nothing from us at this index. No connection is made to them.
  void PostTo(int member, const std::byte* data, size_t length);
  // This member has nothing to say at the next `count` indices.
  void PostNothing(uint64_t count);

  // The piece that `member` posted for us at the current index, or nullptr while it is not all there. `length` is what
  // it posted (all members know). A socket delivers straight into `direct` if passed; the caller copies when the result
  // is elsewhere. Valid until Release.
  const std::byte* Fetch(int member, Layout layout, size_t length, std::byte* direct = nullptr);
  // Whether all others have posted something, or nothing, at the current index. Where all are reached by memory only.
  bool AllPosted() const;
  // Whether all others are done with all that we posted. Where all are reached by memory only.
  bool AllReleased() const;
  // Whether another is done with the current index, which is reached by memory.
  bool HasReleased(int member) const {
    return heads_[static_cast<size_t>(member)]->released.load(std::memory_order_acquire) > released_;
  }
  // Adds bytes to the byte counters that a state machine read from, or wrote into, tensors of other members directly.
  void CountMemory(uint64_t read, uint64_t written);
  // How many indices another has posted, which is reached by memory, and how many it has done reading.
  uint64_t PostedBy(int member) const {
    return heads_[static_cast<size_t>(member)]->posted.load(std::memory_order_acquire);
  }
  uint64_t ReleasedBy(int member) const {
    return heads_[static_cast<size_t>(member)]->released.load(std::memory_order_acquire);
  }
  // Done with the current index.
  void Release(uint64_t count = 1);

  // Pushes queued bytes into sockets; true if any moved.
  bool Pump();
  // Every posted byte has left for the kernel, or never will.
  bool Idle() const { return outstanding_ == 0 || !status_.ok(); }
  uint64_t posted() const { return posted_; }      // indices so far
  uint64_t released() const { return released_; }  // the current index
  // Every byte of the indices before this one has left for the kernel.
  bool HaveLeft(uint64_t before) const;
  // Forgets what has not left: nobody waits for it any more, and its memory may go.
  void DropUnsent();
  // Some links may be dead while the ranks at their ends are well, and speak by others: one whose other end has
  // acknowledged nothing for `limit` counts as broken. To be called now and then.
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // A broken link: which member, and why.
  const Status& status() const { return status_; }
  int lost_member() const { return lost_member_; }
  void CloseDescriptors();

 private:
  struct Item {
    const std::byte* data;
    size_t left;
    uint64_t index;
  };
  struct Wire {  // the sockets to one remote member
    StreamKey key;
    std::vector<int> fds;
    std::vector<std::deque<Item>> queues;                                 // by stream
    std::vector<std::chrono::steady_clock::time_point> unanswered_since;  // by stream; the epoch: it is not
    size_t got = 0;         // bytes of the current index that have arrived
    uint64_t complete = 0;  // indices received in full
    std::unique_ptr<std::byte[]> scratch;
    size_t scratch_bytes = 0;
    std::byte* target = nullptr;
  };

  void Queue(int member, const std::byte* data, size_t length);
  void Announce(uint64_t count);
  int StreamFd(int member, size_t stream);
  bool Send(int member, size_t stream);
  void Break(int member, const std::string& why);
  void CountFetched(int member, size_t length);

  LaneOptions options_;
  size_t chunk_bytes_ = 0;                   // as it was set
  size_t slot_bytes_ = 0, piece_bytes_ = 0;  // what came of it
  size_t slots_count_;
  std::vector<LaneHead*> heads_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<int> local_, remote_;  // members by how they are reached, without ourselves
  std::unique_ptr<std::byte[]> private_slots_;
  std::byte* slots_;
  uint64_t posted_ = 0, released_ = 0;
  uint64_t moved_at_ = 0;          // chunks posted before the slots were moved: they must be released before the next
  uint64_t local_released_ = 0;    // a lower bound on what all local peers have released
  size_t outstanding_ = 0;         // items not yet handed to the kernel
  std::vector<uint64_t> counted_;  // by member in memory: its pieces before this index are in the byte counters
  Connector* connector_;
  Traffic* traffic_;  // null without a connector, as in tests
  std::function<void()> changed_;
  Status status_;
  int lost_member_ = -1;
};

}  // namespace hvd
