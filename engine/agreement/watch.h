// SPDX-License-Identifier: Apache-2.0
// Detects stalled tensors. Pure: a function of reports and time, with no clock of its own, so that every rule has a
// table test.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "agreement/coordinator.h"
#include "base/heartbeats.h"

namespace hvd {

// Finds tensors that some ranks are ready for and others do not submit.
class StallInspector {
 public:
  struct Options {
    WatchSpan warning{};   // zero: no check at all
    WatchSpan shutdown{};  // zero: stalls are never fatal
  };
  struct Finding {
    std::string name;
    std::vector<int> missing;
    WatchSpan waited;
    bool fatal;
  };

  explicit StallInspector(Options options) : options_(options) {}

  // Return new stalls among the tensors that are pending now: each once when its warning is due, and once it is fatal.
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

}  // namespace hvd
