// SPDX-License-Identifier: Apache-2.0
// What the members of a set contribute to a collective that goes express, and what each makes of everybody's parts. All
// of it follows from the agreed description, so that no member needs to be told what the others do.
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
  // A run of `entry`, the agreed description, by one of the members. `root`: of a broadcast, as a member. `hosts`:
  // members by host where operations of this kind go by the hierarchy, else null; sums are then taken in its order (see
  // SmallAllreduce).
  ExpressRun(const Entry& entry, size_t members, size_t me, int root,
             const std::vector<std::vector<int>>* hosts = nullptr)
      : entry_(entry), members_(members), me_(me), root_(root), hosts_(hosts) {}

  // Whether it counts as a round (see express.h). All members come to the same answer, whatever their settings.
  bool CountsAsRound() const;
  // Whether members in memory write into each other's outputs; else each reads what the others show or send. Likewise.
  bool IsPushed() const;

  size_t BytesFrom(size_t member) const;
  size_t OutputBytes(size_t member) const;  // of an allgather or alltoall
  size_t MostBytes() const;                 // from any member
  // What of a member's contribution another one needs.
  struct Share {
    size_t begin, bytes;
  };
  Share ShareOf(size_t from, size_t to) const;

  // Whether parts are passed on between hosts: carried ones are then whole, for whoever needs which share of them.
  void Relay() { relayed_ = true; }
  bool relayed() const { return relayed_; }
  Share CarriedTo(size_t from, size_t to) const { return relayed_ ? Share{0, BytesFrom(from)} : ShareOf(from, to); }

  // Our contribution.
  void Write(const Operation& operation, std::byte* to) const;
  // Where it lies already; null if it has to be written.
  const std::byte* InInput(const Operation& operation) const;
  // The result, from contributions of all: whole ones of ours and where they lie in place, else our shares of them.
  void Assemble(Operation* operation, const std::vector<Express::Piece>& parts) const;

  // Where our result will be pushed to: nullptr unless it lies in the arena, which others reach.
  std::byte* PlaceForPushes(Operation* operation, const std::shared_ptr<Arena>& arena) const;
  // Writes our contribution to everybody's output.
  void Push(const Operation& operation, const std::vector<Express::Piece>& outputs) const;

 private:
  // alltoall: rows from one member to another.
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
