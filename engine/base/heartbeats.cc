// SPDX-License-Identifier: Apache-2.0
#include "base/heartbeats.h"

#include <algorithm>

namespace hvd {
namespace {

std::string Seconds(WatchSpan span) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(span).count()) + " s";
}

}  // namespace

void Heartbeats::Heard(int rank, WatchTime when) {
  auto found = heard_.find(rank);
  if (found != heard_.end()) found->second = std::max(found->second, when);
}

std::vector<int> Heartbeats::Silent(WatchTime now) {
  const WatchSpan slept = looked_ == WatchTime() ? WatchSpan::zero() : now - looked_;
  const bool overslept = slept > std::max<WatchSpan>(4 * kPeriod, limit_ / 2);
  if (slept > limit_) {
    absence_ = slept;
    returned_ = now;
  }
  looked_ = now;
  std::vector<int> silent;
  for (auto& [rank, heard] : heard_) {
    if (overslept) heard = now;
    if (limit_ > WatchSpan::zero() && now - heard >= limit_) silent.push_back(rank);
  }
  return silent;
}

WatchTime Heartbeats::NextLook(WatchTime now) const {
  WatchTime next = now + kPeriod;
  if (limit_ == WatchSpan::zero()) return next;
  for (const auto& [rank, heard] : heard_) {
    if (heard + limit_ > now) next = std::min(next, heard + limit_);
  }
  return next;
}

WatchSpan Heartbeats::Absence(WatchTime now) const {
  if (limit_ == WatchSpan::zero() || looked_ == WatchTime()) return WatchSpan::zero();
  if (now - looked_ > limit_) return now - looked_;
  return returned_ != WatchTime() && now - returned_ < 4 * kPeriod ? absence_ : WatchSpan::zero();
}

std::string Heartbeats::SilenceText() const {
  return "it has given no sign of life for " + Seconds(limit_) +
         " (frozen, or cut off; HOROVOD_PEER_TIMEOUT_SECONDS sets the limit)";
}

std::string Heartbeats::AbsenceText(WatchSpan absence) {
  return "it gave no sign of life for " + Seconds(absence) +
         " (it was frozen; HOROVOD_PEER_TIMEOUT_SECONDS sets the limit), and the others have gone on without it";
}

}  // namespace hvd
