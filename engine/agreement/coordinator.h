// SPDX-License-Identifier: Apache-2.0
// The leader's decisions for one process set: counts what each member is ready for, and decides what runs next and what
// is fused. Pure: no clock, thread, socket or shared memory, so that every rule has a table test.
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
  size_t cache_capacity = size_t{1} << 16;      // largest number of slots; 0 = no cache
  bool disable_group_fusion = false;            // HOROVOD_DISABLE_GROUP_FUSION
  HostLayout hosts;
  AlgorithmRules algorithms;
};

class Coordinator {
 public:
  // `members` are the global ranks of the set in ascending order. Member indices below are positions in it.
  Coordinator(std::vector<int> members, CoordinatorOptions options);
  ~Coordinator();

  // Note that a member is ready for a tensor, described in full. A second report of the tensor is ignored until the
  // first is decided. Reports of one member must come in the order in which it made them.
  void OnRequest(int member, const Request& request);
  // Note that a member is ready for the tensor cached under `slot`. `seen` is the sequence number of the last record
  // that it had applied then; a slot evicted later than that is still understood. `express`: it has sent its part of
  // the result to all members. A tensor that all members have sent needs no decision.
  void OnReady(int member, uint32_t slot, uint64_t seen, bool express = false);
  // Note that a member called shutdown. Everything that waits for it, now or later, fails with a text that names it.
  void OnDeparture(int member);

  // Heard returns how many reports of a member were counted. Skip counts a report that came too late to matter.
  uint64_t Heard(int member) const;
  void Skip(int member);

  // Return the members (indices) that are missing for what `member` waits for: a tensor, or any tensor of a group that
  // is not empty. Empty if none is missing, or if the member is not known to wait for that.
  std::vector<int> MissingFor(int member, const std::string& name, const std::string& group) const;
  // Fail deadlocked tensors with `why`: those that a member in `waiting` has reported and a member in `stuck` has not.
  // Both lists contain member indices.
  void FailStuck(const std::vector<int>& waiting, const std::vector<int>& stuck, const Status& why);

  // Publish these values with the next decision. Later batches are fused by them.
  void Tune(const Tuning& tuning);
  // Publish this launch slot with the next decision. Global set only.
  void Give(const Turn& turn);

  // Return everything that can be decided now, as records with consecutive sequence numbers, starting with 1: tuning,
  // errors, at most one eviction, batches, and then the end of a join. Entries with `cached` contain only their slot.
  // An error without names is a protocol error: no tensor of this set can be trusted to finish.
  std::vector<Record> Decide();

  // Tensor that some members have not reported, with its name and the missing global ranks. For the stall inspector.
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
