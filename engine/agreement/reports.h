// SPDX-License-Identifier: Apache-2.0
// What each member of a set reported about one tensor. Equal descriptions are stored once, because most members report
// equal ones: a thousand ranks that agree need one request and a thousand indices.
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

  // Return the first member that reported, by index instead of time, so that texts and batches do not depend on races.
  size_t FirstMember() const {
    return static_cast<size_t>(
        std::find_if(which_.begin(), which_.end(), [](uint32_t which) { return which != kSilent; }) - which_.begin());
  }
  const Request& First() const { return Of(FirstMember()); }

  // Return true if every member reported an offset at which local peers find its tensor.
  bool AllPlaced() const {
    return std::find(which_.begin(), which_.end(), kSilent) == which_.end() &&
           std::all_of(distinct_.begin(), distinct_.end(), [](const Request& one) { return one.place >= 0; });
  }

  void Add(size_t member, const Request& request) {
    // Number of descriptions with which a new one is compared. Devices differ within a host and repeat on the next one,
    // so a few comparisons find an equal description. In an allgather or alltoall every member may differ, so a long
    // search would cost time without finding anything.
    constexpr size_t kSearched = 16;
    const auto end = distinct_.begin() + static_cast<std::ptrdiff_t>(std::min(distinct_.size(), kSearched));
    const auto found = std::find(distinct_.begin(), end, request);
    const bool known = found != end;
    which_[member] = static_cast<uint32_t>(known ? found - distinct_.begin() : distinct_.size());
    if (!known) distinct_.push_back(request);
  }

  // Fill in the members that have joined: their descriptions are what the others agreed on.
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
  std::vector<uint32_t> which_;  // index into distinct_, by member
};

}  // namespace hvd
