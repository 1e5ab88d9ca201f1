// SPDX-License-Identifier: Apache-2.0
// Search strategy of the autotuner: from the score of each sample it decides which values to try next and which to
// keep. It runs a Bayesian search over a logarithmic grid, then measures the best candidates and the starting values
// again, in turn. It has no clock and no I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "agreement/message.h"
#include "base/config.h"
#include "tuning/gaussian_process.h"

namespace hvd {

struct AutotuneOptions {
  Tuning start;
  bool fixed_fusion = false, fixed_cycle = false, fixed_chunk = false;  // values set by the user, which are not changed
  int warmup_samples = 3;
  int search_samples = 20;  // number of samples of the search; if 0, the starting values are kept
  double noise = 0.8;       // standard deviation of a sample, relative to the effect of the values
};

Tuning InitialTuning(const Settings& settings);
// Return the largest chunk for which a lane's slots must have room.
size_t LargestChunk(const Settings& settings);

class Autotuner {
 public:
  // Largest chunk that is ever tried.
  static constexpr size_t kLargestChunk = size_t{1} << 20;

  enum class Phase { kWarmup, kSearch, kFinal, kChosen };

  explicit Autotuner(const AutotuneOptions& options);

  // Return the purpose of the next sample, and the values to measure it with. Once the phase is kChosen, the values are
  // final.
  Phase phase() const { return phase_; }
  const Tuning& values() const { return candidates_[current_].values; }
  // Add the result of the next sample: `bytes` were reduced in `seconds`.
  void AddSample(double bytes, double seconds);
  // Return the median of all samples with the current values, in bytes per second.
  double score() const;

 private:
  struct Candidate {
    Tuning values;
    GaussianProcess::Point point;
    std::vector<double> scores;  // scores as logarithms, so that a factor counts equally everywhere
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
  int samples_ = 0;           // samples that the current phase has taken
  std::vector<size_t> plan_;  // candidates to measure: for the opening of the search, later for the finals
  size_t opened_ = 0;         // number of opening samples that are done
  std::vector<size_t> finalists_;
  GaussianProcess model_;
  double best_ = 0;  // highest mean of the model among the measured candidates
};

}  // namespace hvd
