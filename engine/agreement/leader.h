// SPDX-License-Identifier: Apache-2.0
// State that only the leader of a process set has: the coordinator, the tensor that each member reported last, and how
// long tensors have waited. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agreement/coordinator.h"
#include "agreement/watch.h"

namespace hvd {

class Leader {
 public:
  // `ranks` are those of the set in ascending order.
  Leader(const std::vector<int>& ranks, const CoordinatorOptions& options, const StallInspector::Options& stalls)
      : coordinator_(ranks, options), inspector_(stalls), last_heard_(ranks.size()) {}

  Coordinator& coordinator() { return coordinator_; }
  const Coordinator& coordinator() const { return coordinator_; }

  // Note that a member submitted a tensor of this name.
  void Hear(size_t member, const std::string& name) { last_heard_[member] = name; }
  const std::string& last_heard(size_t member) const { return last_heard_[member]; }

  // Note that a record of the coordinator is about to be published.
  void Publishes(const Record& record) {
    if (record.kind == RecordKind::kBatch) last_batch_ = record.sequence;
  }
  uint64_t last_batch() const { return last_batch_; }  // sequence number of the last batch

  std::vector<StallInspector::Finding> FindStalls(WatchTime now) {
    return inspector_.Inspect(coordinator_.Pending(), now);
  }

 private:
  Coordinator coordinator_;
  StallInspector inspector_;
  std::vector<std::string> last_heard_;  // name of the last reported tensor, by member
  uint64_t last_batch_ = 0;
};

}  // namespace hvd
