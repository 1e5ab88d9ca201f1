// SPDX-License-Identifier: Apache-2.0
// The negotiation state of one process set on a member: what it has announced, and how far it has applied the leader's
// log. Only the thread that drives the engine uses it.
#pragma once

#include <cstdint>
#include <utility>

#include "agreement/entry_cache.h"
#include "base/types.h"
#include "core/operation_table.h"

namespace hvd {

class MemberState {
 public:
  // Operations that were announced to the leader, or sent to all members, and are not agreed upon yet.
  OperationTable& pending() { return pending_; }
  const OperationTable& pending() const { return pending_; }
  EntryCache& cache() { return cache_; }
  const EntryCache& cache() const { return cache_; }

  uint64_t applied() const { return applied_; }  // sequence number of the last applied record
  // Advance to the next record. Return false if `sequence` is not the next number.
  bool Advance(uint64_t sequence) {
    if (sequence != applied_ + 1) return false;
    applied_ = sequence;
    return true;
  }

  // Number of operations announced to the leader or sent to all members.
  uint64_t announced() const { return announced_; }
  void Announce() { ++announced_; }

  // True between this rank's join and the join of the last rank. Meanwhile it contributes zeros to everything.
  bool joined() const { return joined_; }
  void Join() { joined_ = true; }
  void EndJoin() { joined_ = false; }

  // Why nothing more can be agreed, because a required rank has left; ok if all are there.
  const Status& closed() const { return closed_; }
  void Close(Status why) { closed_ = std::move(why); }

 private:
  OperationTable pending_;
  EntryCache cache_;
  uint64_t applied_ = 0;
  uint64_t announced_ = 0;
  bool joined_ = false;
  Status closed_;
};

}  // namespace hvd
