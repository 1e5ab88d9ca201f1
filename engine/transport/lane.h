// SPDX-License-Identifier: Apache-2.0
// Sequence of chunks between the members of a group. At each index, every member posts one chunk (possibly empty) and
// reads the pieces that the others posted for it. All members go through the indices in order; no other protocol is
// needed. A peer on the same host reads the chunk in place, from the poster's slot in shared memory; to all other
// peers, the piece is sent through a socket. Collectives use only this class, so that they need one implementation.
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

// Shared head of a lane in its owner's arena, followed by the slots.
struct LaneHead {
  alignas(64) std::atomic<uint64_t> posted;    // number of chunks that the owner has posted
  alignas(64) std::atomic<uint64_t> released;  // number of indices at which the owner has finished reading
  alignas(64) std::byte slots[1];
};
constexpr size_t kLaneHeadBytes = 128;

struct LaneOptions {
  int members = 1;
  int me = 0;
  size_t slot_bytes = size_t{256} << 10;
  int slots = 4;
  int streams = 1;
  bool apart = false;  // true if no two members share memory, as all of them know; chunks then fill whole packets
};

// Round `bytes` down to a size that fills whole packets. The largest packet that the kernel builds holds 62,636 to
// 65,483 bytes of payload, depending on the frames into which it is split later, so 64 KB would need two packets. A
// packet costs as much as the bytes in it.
inline size_t InPackets(size_t bytes) {
  constexpr size_t kRound = size_t{64} << 10, kPacket = size_t{60} << 10;
  return bytes < kRound ? bytes : bytes / kRound * kPacket;
}

class Lane {
 public:
  // kScatter: one piece for each member; kMulticast: one piece for all members
  enum class Layout { kScatter, kMulticast };

  static size_t BytesNeeded(const LaneOptions& options) {
    return kLaneHeadBytes + options.slot_bytes * static_cast<size_t>(options.slots);
  }

  // Args: heads[j] is the head of member j if it is reached through shared memory, otherwise nullptr. heads[me] is this
  // rank's head, or nullptr if no member needs it (the slots are then private). keys[j] is the stream to member j where
  // heads[j] is null. `changed` is called after every post and release, to wake local peers. `connector` may be null if
  // all members are reached through shared memory.
  Lane(const LaneOptions& options, std::vector<LaneHead*> heads, std::vector<StreamKey> keys, Connector* connector,
       std::function<void()> changed);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  int members() const { return options_.members; }
  int me() const { return options_.me; }
  size_t slot_bytes() const { return slot_bytes_; }  // returns the maximum size of a chunk
  bool apart() const { return options_.apart; }
  int slots() const { return static_cast<int>(slots_count_); }  // returns the maximum number of chunks in flight
  // Set the chunk size. All members must call this at the same index, because smaller chunks lie closer together in the
  // slots' memory.
  void set_chunk_bytes(size_t bytes);
  // Return the first slot of this rank, or of a member that is reached through shared memory.
  std::byte* SlotsOf(int member) const { return member == me() ? slots_ : heads_[static_cast<size_t>(member)]->slots; }
  // returns the maximum size of one member's piece of a scattered chunk
  size_t piece_bytes() const { return piece_bytes_; }

  // Return true if the next slot may be overwritten, or the one `ahead` indices later.
  bool CanPost(uint64_t ahead = 0);
  std::byte* Slot() { return slots_ + (posted_ % slots_count_) * slot_bytes_; }
  // Post a chunk with one piece for each member: the piece of member j lies at j * piece_bytes() in the slot.
  // lengths[me] is ignored.
  void PostScatter(const size_t* lengths);
  void PostMulticast(size_t length);
  // Return true if the member is reached through shared memory.
  bool in_memory(int member) const { return heads_[member] != nullptr; }
  bool by_sockets() const { return local_.empty(); }  // returns true if all other members are reached through sockets
  // Post data that sockets send from the caller's memory instead of the slot. It must not change until the lane is
  // idle, or until a member's answer shows that it has arrived. Pieces for members reached through shared memory must
  // lie in the slot, as for PostScatter.
  void PostScatterFrom(const std::byte* const* pieces, const size_t* lengths);
  void PostMulticastFrom(const std::byte* data, size_t length);
  // Post a chunk for one member; it is empty for all others, and no connection to them is opened.
  void PostTo(int member, const std::byte* data, size_t length);
  // Post empty chunks at the next `count` indices.
  void PostNothing(uint64_t count);

  // Return the piece that `member` posted for this rank at the current index, or nullptr until it is complete. `length`
  // is its size, which all members know. Data from a socket is received into `direct` if that is given; if the result
  // lies elsewhere, the caller copies it. The result is valid until Release.
  const std::byte* Fetch(int member, Layout layout, size_t length, std::byte* direct = nullptr);
  // Return true if all others have posted at the current index. Only for lanes whose members are all reached through
  // shared memory.
  bool AllPosted() const;
  // Return true if all others have released everything that this rank posted. Only for lanes whose members are all
  // reached through shared memory.
  bool AllReleased() const;
  // Return true if `member`, which must be reached through shared memory, has released the current index.
  bool HasReleased(int member) const {
    return heads_[static_cast<size_t>(member)]->released.load(std::memory_order_acquire) > released_;
  }
  // Add to the byte counters what a state machine read from, or wrote into, tensors of other members directly.
  void CountMemory(uint64_t read, uint64_t written);
  // Return how many indices `member`, which must be reached through shared memory, has posted, or has released.
  uint64_t PostedBy(int member) const {
    return heads_[static_cast<size_t>(member)]->posted.load(std::memory_order_acquire);
  }
  uint64_t ReleasedBy(int member) const {
    return heads_[static_cast<size_t>(member)]->released.load(std::memory_order_acquire);
  }
  // Finish reading at the current index, or at the next `count` indices.
  void Release(uint64_t count = 1);

  // Send queued bytes; return true if the sockets took any.
  bool Pump();
  // Return true if the kernel has taken every posted byte, or if the lane has failed, so that no more will be sent.
  bool Idle() const { return outstanding_ == 0 || !status_.ok(); }
  uint64_t posted() const { return posted_; }      // returns the number of indices posted so far
  uint64_t released() const { return released_; }  // returns the current index
  // Return true if the kernel has taken every byte of the indices before `before`.
  bool HaveLeft(uint64_t before) const;
  // Discard unsent data, because no rank needs it any more and its memory may be freed.
  void DropUnsent();
  // Break the lane if the other end of a connection has acknowledged nothing for `limit`. A single connection may be
  // dead while the rank at its end is alive and reachable over others. Call this regularly.
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // Return the reason for which a connection broke, or OK; lost_member() returns the member at its end.
  const Status& status() const { return status_; }
  int lost_member() const { return lost_member_; }
  void CloseDescriptors();

 private:
  struct Item {
    const std::byte* data;
    size_t left;
    uint64_t index;
  };
  struct Wire {  // sockets to one member that shares no memory with this rank
    StreamKey key;
    std::vector<int> fds;
    std::vector<std::deque<Item>> queues;  // by stream
    // By stream: since when data has been retransmitted without an answer; the epoch if all is well.
    std::vector<std::chrono::steady_clock::time_point> unanswered_since;
    size_t got = 0;         // bytes of the current index received so far
    uint64_t complete = 0;  // number of indices received completely
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
  size_t chunk_bytes_ = 0;                   // the chunk size that was set last
  size_t slot_bytes_ = 0, piece_bytes_ = 0;  // sizes that follow from chunk_bytes_
  size_t slots_count_;
  std::vector<LaneHead*> heads_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<int> local_, remote_;  // the other members that are reached through shared memory, and through sockets
  std::unique_ptr<std::byte[]> private_slots_;
  std::byte* slots_;
  uint64_t posted_ = 0, released_ = 0;
  // Number of chunks posted before the slot size changed; all must be released before the next post.
  uint64_t moved_at_ = 0;
  uint64_t local_released_ = 0;  // lower bound of the number of indices that all local peers have released
  size_t outstanding_ = 0;       // number of items that the kernel has not taken completely
  // For each member in shared memory: pieces before this index are in the byte counters.
  std::vector<uint64_t> counted_;
  Connector* connector_;
  Traffic* traffic_;  // counts bytes; null without a connector, as in tests
  std::function<void()> changed_;
  Status status_;
  int lost_member_ = -1;
};

}  // namespace hvd
