// SPDX-License-Identifier: Apache-2.0
// The process sets of a world, as one rank sees them. Only the thread that drives the engine uses them, apart from
// count().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/membership.h"
#include "core/submissions.h"
#include "core/tuned_values.h"

namespace hvd {

// Owns this rank's memberships, the ids of the sets that it does not belong to, the messages for sets that it has not
// added yet, and the tuning values for all sets.
class SetRegistry {
 public:
  using Sets = std::map<int, std::unique_ptr<Membership>>;
  using Message = std::pair<int, std::string>;  // sender and bytes

  // All arguments must outlive this object.
  SetRegistry(const Surroundings* around, const Services* services, Submissions* submissions)
      : around_(*around), services_(*services), submissions_(*submissions) {}

  // Process sets that this rank belongs to, by id.
  const Sets& all() const { return sets_; }
  Membership& global() const { return *sets_.at(kGlobalSet); }
  int rank() const { return around_.rank; }
  // Return this rank's membership in a set; null if it is not a member.
  Membership* Find(int id) const {
    const auto found = sets_.find(id);
    return found == sets_.end() ? nullptr : found->second.get();
  }
  Membership* Find(int id, uint32_t epoch) const {
    Membership* const found = Find(id);
    return found && found->set.epoch() == epoch ? found : nullptr;
  }
  // Call `visit` for each set, which may add and remove other sets.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (auto it = sets_.begin(); it != sets_.end();) {
      const int id = it->first;
      visit(*it->second);
      it = sets_.upper_bound(id);
    }
  }
  // Number of process sets of the world. Any thread may call this.
  size_t count() const { return count_.load(std::memory_order_relaxed); }

  // Add the set of all ranks, before any other.
  void AddGlobal(const std::vector<int>& ranks, const std::vector<int64_t>& regions);
  // Complete a request to add a set with the memory that this rank reserves for it.
  void ReserveRegion(Request* request) const;
  // Carry out an agreed request to add a set. Return this rank's membership, or null if it is not a member.
  Membership* Add(const Entry& entry);
  // Carry out an agreed request to remove a set. Unfinished operations in it fail.
  void Remove(const Entry& entry);

  const TunedValues& tuned() const { return tuned_; }
  // Store new tuning values. Each set changes its chunk size by its own log, so leaders pass the values on there.
  void Tune(const Tuning& tuning);
  // Keep a message for a set that this rank does not know, if the record that adds the set may still come.
  void KeepEarly(int from, uint32_t epoch, std::string_view message) {
    if (epoch > newest_epoch_) early_.emplace_back(from, message);
  }
  std::deque<Message> TakeEarly() { return std::exchange(early_, {}); }

  // Return an operation of the handle that is not agreed upon yet, with its set; null pointers if there is none.
  std::pair<Membership*, const Operation*> FindPending(const Handle& handle) const;
  // Return true if everything submitted so far has been announced to the leaders.
  bool AllAnnounced() const;

 private:
  void ExpectMembers(const ProcessSet& set);
  void Count() { count_.store(sets_.size() + others_.size(), std::memory_order_relaxed); }

  const Surroundings& around_;
  const Services& services_;
  Submissions& submissions_;
  Sets sets_;
  std::set<int> others_;  // ids of the process sets that this rank does not belong to
  std::atomic<size_t> count_{1};
  std::deque<Message> early_;
  uint32_t newest_epoch_ = 0;
  TunedValues tuned_;
};

}  // namespace hvd
