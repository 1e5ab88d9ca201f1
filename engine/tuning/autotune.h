// SPDX-License-Identifier: Apache-2.0
// The autotuner's mind: told how each sample went, it says which values to try next and which to keep. Bayesian search
// over a logarithmic grid, then the best candidates and the starting values once more, in turn. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "agreement/message.h"
#include "base/config.h"
#include "tuning/gaussian_process.h"

namespace hvd {

struct AutotuneOptions {
  Tuning start;
  bool fixed_fusion = false, fixed_cycle = false, fixed_chunk = false;  // the user's own choice, not to be touched
  int warmup_samples = 3;
  int search_samples = 20;  // 0: the starting values stay
  double noise = 0.8;       // of a sample, relative to what the values can change
};

Tuning InitialTuning(const Settings& settings);
// What a lane's slots must have room for.
size_t LargestChunk(const Settings& settings);

class Autotuner {
 public:
  // The largest chunk that is ever tried; the lanes' slots must have room for it.
  static constexpr size_t kLargestChunk = size_t{1} << 20;

  enum class Phase { kWarmup, kSearch, kFinal, kChosen };

  explicit Autotuner(const AutotuneOptions& options);

  // What the next sample is for, and the values that it is to be measured with; for good once the phase is kChosen.
  Phase phase() const { return phase_; }
  const Tuning& values() const { return candidates_[current_].values; }
  // The next sample took this many seconds for this many bytes.
  void AddSample(double bytes, double seconds);
  // What was measured with the values in force, taken together: the median, in bytes per second.
  double score() const;

 private:
  struct Candidate {
    Tuning values;
    GaussianProcess::Point point;
    std::vector<double> scores;  // logarithms: a factor counts the same everywhere
  };

  void AddCandidates(const std::vector<std::vector<uint64_t>>& axes, const Tuning& start);
  void PlanOpening(const std::vector<std::vector<uint64_t>>& axes);
  size_t IndexOf(const GaussianProcess::Point& point) const;
  void Learn();
  bool IsDoubtful() const;
  size_t MostPromising() const;
  void PlanFinals();
  void Choose();
  void Advance();

  AutotuneOptions options_;
  Phase phase_ = Phase::kWarmup;
  std::vector<Candidate> candidates_;
  size_t start_ = 0, current_ = 0;
  int samples_ = 0;           // of this phase
  std::vector<size_t> plan_;  // of the search's opening, then of the finals
  size_t opened_ = 0;         // how much of the opening has been taken up
  std::vector<size_t> finalists_;
  GaussianProcess model_;
  double best_ = 0;  // the model's mean where it is highest among the measured
};

}  // namespace hvd
