// SPDX-License-Identifier: Apache-2.0
// Who has fallen silent, and what has stalled: pure functions of what was heard and of the time, with no clock of their
// own, so that every rule has a table test.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/coordinator.h"

namespace hvd {

using WatchTime = std::chrono::steady_clock::time_point;
using WatchSpan = std::chrono::steady_clock::duration;

// Peers must give a sign of life within `limit` (zero: for ever). Looked at about once in `kPeriod`.
class Heartbeats {
 public:
  static constexpr std::chrono::seconds kPeriod{1};

  explicit Heartbeats(WatchSpan limit) : limit_(limit) {}

  void Expect(int rank, WatchTime now) { heard_.emplace(rank, now); }
  void Heard(int rank, WatchTime now);
  void Forget(int rank) { heard_.erase(rank); }
  // Ranks that have been silent for too long. If we have not looked for much longer than a period, it was us who slept
  // (a stopped container, a debugger): everybody starts anew.
  std::vector<int> Silent(WatchTime now);

 private:
  WatchSpan limit_;
  std::map<int, WatchTime> heard_;
  WatchTime looked_{};
};

// Tensors that some ranks are ready for and others never submit.
class StallInspector {
 public:
  struct Options {
    WatchSpan warning{};   // zero: no check
    WatchSpan shutdown{};  // zero: never
  };
  struct Finding {
    std::string name;
    std::vector<int> missing;
    WatchSpan waited;
    bool fatal;
  };

  explicit StallInspector(Options options) : options_(options) {}

  // `waiting`: all that is pending now. Each stall is found once for its warning and once when it becomes fatal.
  std::vector<Finding> Inspect(const std::vector<Coordinator::Waiting>& waiting, WatchTime now);

 private:
  struct Since {
    WatchTime first;
    bool warned = false;
    bool present = false;
  };
  Options options_;
  std::unordered_map<std::string, Since> since_;
};

// "1, 3, 5", cut after a few.
std::string ListOfRanks(const std::vector<int>& ranks);

}  // namespace hvd
