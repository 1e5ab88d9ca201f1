// SPDX-License-Identifier: Apache-2.0
// The leader's mind for one process set: hears what each member is ready for, decides what runs next and what is fused
// with what. Pure: no clock, thread, socket or shared memory, so that every rule has a table test.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agreement/algorithms.h"
#include "agreement/message.h"

namespace hvd {

struct CoordinatorOptions {
  size_t fusion_threshold = size_t{128} << 20;  // bytes; 0 = nothing is fused
  size_t cache_capacity = size_t{1} << 16;      // slots at most; 0 = no cache
  bool disable_group_fusion = false;            // HOROVOD_DISABLE_GROUP_FUSION
  HostLayout hosts;
  AlgorithmRules algorithms;
};

class Coordinator {
 public:
  // `members`: global ranks of the set, ascending. Member indices below are positions in it.
  Coordinator(std::vector<int> members, CoordinatorOptions options);
  ~Coordinator();

  // A member is ready for a tensor, described in full. A second report of the same tensor is ignored until the first is
  // decided. Reports of one member must come in the order in which it made them.
  void OnRequest(int member, const Request& request);
  // A member is ready for the tensor cached under `slot`. `seen` is the sequence of the last record it had applied
  // when it said so; a slot evicted later than that is still understood.
  // `express`: it has sent its part of the result to all members. What all of them have sent needs no decision.
  void OnReady(int member, uint32_t slot, uint64_t seen, bool express = false);
  // A member called shutdown: whatever waits for it, now or later, fails with a text naming it.
  void OnDeparture(int member);

  // Of a member: how many reports it has made that were taken into account. `Skip`: one that was of no account any
  // more.
  uint64_t Heard(int member) const;
  void Skip(int member);

  // Who is missing from what a member waits for: a tensor, or any of a group that is not empty. Member indices; empty
  // if it is not known to wait for that, or nobody is missing.
  std::vector<int> MissingFor(int member, const std::string& name, const std::string& group) const;
  // Members that wait for each other for ever: what one of `waiting` has reported and one of `stuck` has not fails with
  // `why`. Both are member indices.
  void FailStuck(const std::vector<int>& waiting, const std::vector<int>& stuck, const Status& why);

  // The next decision starts with a record of these values, and everything after it is fused by them.
  void Tune(const Tuning& tuning);
  // The global set's: this turn is the next that is published.
  void Give(const Turn& turn);

  // Everything decidable now, as records with consecutive sequence numbers (first ever: 1): tuning, errors, then at
  // most one eviction, then batches, then the end of a join. Entries with `cached` carry their slot alone. An error
  // without names is a broken protocol: no tensor of this set can be trusted to finish.
  std::vector<Record> Decide();

  // Tensors heard of but not ready everywhere, for the stall inspector: name and global ranks that are missing.
  struct Waiting {
    std::string name;
    std::vector<int> missing;
  };
  std::vector<Waiting> Pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd
