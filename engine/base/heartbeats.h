// SPDX-License-Identifier: Apache-2.0
// Detection of silent peers. The class has no clock: its answers depend only on the times that the caller passes.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace hvd {

using WatchTime = std::chrono::steady_clock::time_point;
using WatchSpan = std::chrono::steady_clock::duration;

// Watch over the ranks that must give a sign of life within `limit` (zero: no limit). The caller checks about once
// every `kPeriod`.
class Heartbeats {
 public:
  static constexpr std::chrono::milliseconds kPeriod{500};

  explicit Heartbeats(WatchSpan limit) : limit_(limit) {}

  // Start to watch `rank` as of `since`; no effect if the rank is watched already.
  void Expect(int rank, WatchTime since) { heard_.emplace(rank, since); }
  void Heard(int rank, WatchTime when);
  void Forget(int rank) { heard_.erase(rank); }
  // Return the ranks that have been silent for longer than the limit. If this process itself was suspended since the
  // last call (a stopped container, a debugger), restart the limit of every rank.
  std::vector<int> Silent(WatchTime now);
  // Return when to call Silent next: in one period, or earlier if a rank reaches its limit before.
  WatchTime NextLook(WatchTime now) const;
  // Return how long this process was suspended, if that exceeded the limit and ended only just now; zero otherwise.
  // After so long the other ranks have given this one up, so ranks that left meanwhile did so because of it.
  WatchSpan Absence(WatchTime now) const;

  std::string SilenceText() const;  // the reason in the error about a silent rank
  static std::string AbsenceText(WatchSpan absence);

 private:
  WatchSpan limit_;
  std::map<int, WatchTime> heard_;
  WatchTime looked_{}, returned_{};
  WatchSpan absence_{};
};

}  // namespace hvd
