// SPDX-License-Identifier: Apache-2.0
// Autotuning on the leader, for all ranks: it finds the steps of the training in the negotiated batches, times samples
// of them, asks the Autotuner what to try next and writes the log. It ends when the values are chosen; nothing is
// measured afterwards.
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

// Detector of training steps. A step ends where a name occurs again, because a training step reduces each of its
// tensors once.
class StepFinder {
 public:
  // Return true if a new step begins with this tensor.
  bool Begins(const Request& request);

 private:
  // Limit for names that never occur again: this many names count as a step.
  static constexpr size_t kMostNames = 1 << 16;
  std::unordered_set<size_t> seen_;  // hashes of names
};

// Collectives that use a hierarchical algorithm.
struct ByHost {
  bool sums = false;   // true if allreduce uses a hierarchical algorithm
  bool moves = false;  // true if allgather uses a hierarchical algorithm
};

// Log with one line for each sample and one for the choice, flushed at once. If the file cannot be written, it logs a
// warning and tuning continues.
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

  // Process a negotiated batch of the global set. Return the values to which all ranks must switch, if they change;
  // `final` is set in the last ones, which end the session.
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
  bool settling_ = true;  // true during the first step with new values, which belongs to no sample
  int steps_ = 0;
  double bytes_ = 0;
  Clock::time_point began_;
  std::optional<Tuning> next_;
};

}  // namespace hvd
