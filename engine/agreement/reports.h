// SPDX-License-Identifier: Apache-2.0
// What each member of a set said about one tensor. Members mostly say the same, so equal descriptions are stored once:
// a thousand ranks that agree cost one request and a thousand indices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "agreement/message.h"

namespace hvd {

class Reports {
 public:
  explicit Reports(size_t members = 0) : which_(members, kSilent) {}

  size_t members() const { return which_.size(); }
  bool empty() const { return distinct_.empty(); }
  bool Has(size_t member) const { return which_[member] != kSilent; }
  const Request& Of(size_t member) const { return distinct_[which_[member]]; }
  const std::vector<Request>& distinct() const { return distinct_; }

  // The first member that spoke, by member index and not by time, so that texts and batches do not depend on races.
  size_t FirstMember() const {
    return static_cast<size_t>(
        std::find_if(which_.begin(), which_.end(), [](uint32_t which) { return which != kSilent; }) - which_.begin());
  }
  const Request& First() const { return Of(FirstMember()); }

  // Whether every member spoke and said where local peers find its tensor.
  bool AllPlaced() const {
    return std::find(which_.begin(), which_.end(), kSilent) == which_.end() &&
           std::all_of(distinct_.begin(), distinct_.end(), [](const Request& one) { return one.place >= 0; });
  }

  void Add(size_t member, const Request& request) {
    // The devices of one host differ, and repeat on the next: a short search finds those. Allgather and alltoall
    // may differ on every member, where a long search would only cost.
    constexpr size_t kSearched = 16;
    const auto end = distinct_.begin() + static_cast<std::ptrdiff_t>(std::min(distinct_.size(), kSearched));
    const auto found = std::find(distinct_.begin(), end, request);
    const bool known = found != end;
    which_[member] = static_cast<uint32_t>(known ? found - distinct_.begin() : distinct_.size());
    if (!known) distinct_.push_back(request);
  }

  // Members that have joined said nothing; what they would say is what the others agreed on.
  void FillSilent() {
    const uint32_t first = which_[FirstMember()];
    std::replace(which_.begin(), which_.end(), kSilent, first);
  }

  void Clear() {
    distinct_.clear();
    std::fill(which_.begin(), which_.end(), kSilent);
  }

 private:
  static constexpr uint32_t kSilent = 0xffffffffu;
  std::vector<Request> distinct_;
  std::vector<uint32_t> which_;  // by member: index into distinct_
};

}  // namespace hvd
