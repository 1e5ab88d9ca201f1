// SPDX-License-Identifier: Apache-2.0
// What only the leader of a process set keeps: the coordinator that decides for it, what each member spoke of last, and
// how long tensors have waited. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agreement/coordinator.h"
#include "agreement/watch.h"

namespace hvd {

class Leader {
 public:
  // `ranks`: of the set, ascending.
  Leader(const std::vector<int>& ranks, const CoordinatorOptions& options, const StallInspector::Options& stalls)
      : coordinator_(ranks, options), inspector_(stalls), last_heard_(ranks.size()) {}

  Coordinator& coordinator() { return coordinator_; }
  const Coordinator& coordinator() const { return coordinator_; }

  // A member submitted a tensor of this name.
  void Hear(size_t member, const std::string& name) { last_heard_[member] = name; }
  const std::string& last_heard(size_t member) const { return last_heard_[member]; }

  // A record of the coordinator's is about to be published.
  void Publishes(const Record& record) {
    if (record.kind == RecordKind::kBatch) last_batch_ = record.sequence;
  }
  uint64_t last_batch() const { return last_batch_; }  // its sequence

  std::vector<StallInspector::Finding> FindStalls(WatchTime now) {
    return inspector_.Inspect(coordinator_.Pending(), now);
  }

 private:
  Coordinator coordinator_;
  StallInspector inspector_;
  std::vector<std::string> last_heard_;  // by member
  uint64_t last_batch_ = 0;
};

}  // namespace hvd
