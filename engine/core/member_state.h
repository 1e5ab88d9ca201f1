// SPDX-License-Identifier: Apache-2.0
// The agreement of one process set as a member knows it: what it has asked for, how far into the leader's log it is,
// and what follows from that. Used by the driver alone.
#pragma once

#include <cstdint>
#include <utility>

#include "agreement/entry_cache.h"
#include "base/types.h"
#include "core/operation_table.h"

namespace hvd {

class MemberState {
 public:
  // Told to the leader, or to all members, and not agreed upon yet.
  OperationTable& pending() { return pending_; }
  const OperationTable& pending() const { return pending_; }
  EntryCache& cache() { return cache_; }
  const EntryCache& cache() const { return cache_; }

  uint64_t applied() const { return applied_; }  // the last record
  // False: a record of this number is not the next one.
  bool Advance(uint64_t sequence) {
    if (sequence != applied_ + 1) return false;
    applied_ = sequence;
    return true;
  }

  // How many operations the leader, or all members, were told of.
  uint64_t announced() const { return announced_; }
  void Announce() { ++announced_; }

  // Between this rank's join and the last one it takes part in everything with zeros.
  bool joined() const { return joined_; }
  void Join() { joined_ = true; }
  void EndJoin() { joined_ = false; }

  // Why nothing more can be agreed, once a rank that is needed for it has left.
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
