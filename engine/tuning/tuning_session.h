// SPDX-License-Identifier: Apache-2.0
// Autotuning as the leader of all ranks lives it: finds the training's steps in what is agreed, times samples of them,
// asks the Autotuner what to try next and writes the log. It ends with the tuning; afterwards nothing is measured.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "tuning/autotune.h"

namespace hvd {

// A step ends where a name comes again: a training step reduces each of its tensors once.
class StepFinder {
 public:
  // True if a new step begins with this tensor.
  bool Begins(const Request& request);

 private:
  // Names that never come again must not pile up: this many of them count as a step.
  static constexpr size_t kMostNames = 1 << 16;
  std::unordered_set<size_t> seen_;  // hashes of names
};

// What goes host by host.
struct ByHost {
  bool sums = false;   // allreduce
  bool moves = false;  // allgather
};

// One line for each sample and one for the choice, flushed at once. A file that cannot be written costs a warning.
class AutotuneLog {
 public:
  AutotuneLog(const Settings& settings, ByHost by_host, const Log& log);
  void Write(const Tuning& values, double score, Autotuner::Phase phase);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void Warn(const char* what);

  const Log log_;
  std::string path_, common_;
  std::unique_ptr<std::FILE, Closer> file_;
};

class TuningSession {
 public:
  using Clock = std::chrono::steady_clock;

  TuningSession(const Settings& settings, ByHost by_host, const Log& log = Log());

  // A batch of the global set was agreed upon. Returns what all ranks are to switch to, if anything; `final` is set in
  // the last of these, with which the session is over.
  std::optional<Tuning> OnBatch(const Entries& entries, Clock::time_point now);

 private:
  void BeginStep(Clock::time_point now);
  void EndSample(Clock::time_point now);
  void BeginSample(Clock::time_point now);

  const Log log_;
  Autotuner tuner_;
  AutotuneLog file_;
  StepFinder finder_;
  const int steps_per_sample_;
  bool settling_ = true;  // the first step with other values counts for neither
  int steps_ = 0;
  double bytes_ = 0;
  Clock::time_point began_;
  std::optional<Tuning> next_;
};

}  // namespace hvd
