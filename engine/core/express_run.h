// SPDX-License-Identifier: Apache-2.0
// What each member contributes to a collective on the fast path, and how the result is made from all parts. Everything
// follows from the agreed description, so members need not exchange it.
#pragma once

#include <cstddef>
#include <vector>

#include "agreement/express.h"
#include "agreement/message.h"
#include "core/handle.h"
#include "memory/arena.h"

namespace hvd {

class ExpressRun {
 public:
  // One run of `entry`, the agreed description, on this member. `root`: the root's member index for a broadcast.
  // `hosts`: members by host if operations of this kind use the hierarchy, else null; sums are then taken in that order
  // (see SmallAllreduce).
  ExpressRun(const Entry& entry, size_t members, size_t me, int root,
             const std::vector<std::vector<int>>* hosts = nullptr)
      : entry_(entry), members_(members), me_(me), root_(root), hosts_(hosts) {}

  // Return true if the run counts as a round (see express.h). All members get the same answer, whatever their settings.
  bool CountsAsRound() const;
  // Return true if members in shared memory write into each other's outputs; otherwise each member reads what the
  // others show or send. All members get the same answer.
  bool IsPushed() const;

  size_t BytesFrom(size_t member) const;
  size_t OutputBytes(size_t member) const;  // for an allgather or alltoall
  size_t MostBytes() const;                 // largest contribution of any member
  // Range of a member's contribution that another member needs.
  struct Share {
    size_t begin, bytes;
  };
  Share ShareOf(size_t from, size_t to) const;

  // Choose forwarding between hosts. Messages then carry whole contributions, because members behind the forwarding
  // rank need different shares.
  void Relay() { relayed_ = true; }
  bool relayed() const { return relayed_; }
  Share CarriedTo(size_t from, size_t to) const { return relayed_ ? Share{0, BytesFrom(from)} : ShareOf(from, to); }

  // Write our contribution to `to`.
  void Write(const Operation& operation, std::byte* to) const;
  // Return our contribution inside the input tensor, or null if it must be written to other memory because of a
  // prescale or a wire type.
  const std::byte* InInput(const Operation& operation) const;
  // Compute the result from the parts of all members. Our part, parts in shared memory and forwarded parts are whole;
  // other parts contain only our share.
  void Assemble(Operation* operation, const std::vector<Express::Piece>& parts) const;

  // Return our output if other members can write into it, or null if it is not in the arena.
  std::byte* PlaceForPushes(Operation* operation, const std::shared_ptr<Arena>& arena) const;
  // Write our contribution into the outputs of all members.
  void Push(const Operation& operation, const std::vector<Express::Piece>& outputs) const;

 private:
  // Rows that go from one member to another in an alltoall.
  int64_t Rows(size_t from, size_t to) const { return entry_.sizes[1 + from * members_ + to]; }
  int64_t OutputRows(size_t member) const;
  size_t OffsetIn(size_t owner, size_t from) const;  // bytes before the rows of `from` in the output of `owner`
  size_t OffsetOut(size_t from, size_t to) const;    // bytes before the rows for `to` in the input of `from`
  void TellSplits(Operation* operation) const;
  void Reduce(Operation* operation, const std::vector<Express::Piece>& parts) const;
  const std::byte* OurShare(const std::vector<Express::Piece>& parts, size_t from) const;

  const Entry& entry_;
  size_t members_, me_;
  int root_;
  const std::vector<std::vector<int>>* hosts_;
  bool relayed_ = false;
};

}  // namespace hvd
