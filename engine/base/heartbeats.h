// SPDX-License-Identifier: Apache-2.0
// Who has fallen silent: a pure function of what was heard and of the time, with no clock of its own.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace hvd {

using WatchTime = std::chrono::steady_clock::time_point;
using WatchSpan = std::chrono::steady_clock::duration;

// Peers must give a sign of life within `limit` (zero: for ever). Looked at about once in `kPeriod`.
class Heartbeats {
 public:
  static constexpr std::chrono::milliseconds kPeriod{500};

  explicit Heartbeats(WatchSpan limit) : limit_(limit) {}

  // From `since` on; a rank that is expected already stays as it is.
  void Expect(int rank, WatchTime since) { heard_.emplace(rank, since); }
  void Heard(int rank, WatchTime when);
  void Forget(int rank) { heard_.erase(rank); }
  // Ranks that have been silent for too long. If we have not looked for much longer than a period, it was we who slept
  // (a stopped container, a debugger): everybody starts afresh.
  std::vector<int> Silent(WatchTime now);
  // When to look again: the end of a limit is not missed by a period.
  WatchTime NextLook(WatchTime now) const;
  // How long we ourselves have been away, if that was so long that the others have given us up, and only just ended.
  // Whoever has left meanwhile did so because of us. Zero otherwise.
  WatchSpan Absence(WatchTime now) const;

  std::string SilenceText() const;  // why a silent rank is lost
  static std::string AbsenceText(WatchSpan absence);

 private:
  WatchSpan limit_;
  std::map<int, WatchTime> heard_;
  WatchTime looked_{}, returned_{};
  WatchSpan absence_{};
};

}  // namespace hvd
