// SPDX-License-Identifier: Apache-2.0
#include "tuning/autotune.h"

#include <algorithm>
#include <cmath>

namespace hvd {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr size_t kFinalists = 4;    // number of finalists, including the starting values
constexpr size_t kFinalRounds = 3;  // rounds of the finals; odd, so that one disturbed sample cannot decide
constexpr size_t kMostVisits = 2;   // samples per candidate during the search; the finals measure the best ones again
constexpr double kDoubtful = 0.7;   // fraction of the best score so far below which a sample is doubtful
constexpr double kLeastSpread = 0.01;

const std::vector<uint64_t> kFusion = {kMiB / 2, 2 * kMiB, 8 * kMiB, 32 * kMiB, 128 * kMiB};
const std::vector<uint64_t> kCycle = {100, 300, 1000, 3000, 10000};  // microseconds
const std::vector<uint64_t> kChunk = {64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, Autotuner::kLargestChunk};

// Return the grid of values for one knob, including the starting value. If the user fixed the value, return only that.
std::vector<uint64_t> Axis(const std::vector<uint64_t>& grid, uint64_t start, bool fixed) {
  if (fixed) return {start};
  std::vector<uint64_t> axis = grid;
  axis.insert(std::lower_bound(axis.begin(), axis.end(), start), start);
  axis.erase(std::unique(axis.begin(), axis.end()), axis.end());
  return axis;
}

double Position(size_t index, size_t count) {
  return count > 1 ? static_cast<double>(index) / static_cast<double>(count - 1) : 0.5;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

Tuning InitialTuning(const Settings& settings) {
  return {settings.fusion_threshold, settings.cycle_time_us, settings.slot_bytes, !settings.autotune};
}

size_t LargestChunk(const Settings& settings) {
  const bool tuned = settings.autotune && !(settings.autotune_fixed & kFixedChunk);
  return tuned ? std::max<size_t>(settings.slot_bytes, Autotuner::kLargestChunk) : settings.slot_bytes;
}

Autotuner::Autotuner(const AutotuneOptions& options) : options_(options), model_(options.noise) {
  const Tuning& start = options.start;
  const std::vector<std::vector<uint64_t>> axes = {
      Axis(kFusion, start.fusion_threshold, options.fixed_fusion),
      Axis(kCycle, start.cycle_time_us, options.fixed_cycle),
      Axis(kChunk, start.chunk_bytes, options.fixed_chunk),
  };
  AddCandidates(axes, start);
  current_ = start_;
  if (options_.search_samples <= 0 || candidates_.size() == 1) {
    phase_ = Phase::kChosen;
    return;
  }
  PlanOpening(axes);
  if (options_.warmup_samples > 0) return;
  phase_ = Phase::kSearch;
  opened_ = 1;
}

void Autotuner::AddCandidates(const std::vector<std::vector<uint64_t>>& axes, const Tuning& start) {
  for (size_t f = 0; f < axes[0].size(); ++f) {
    for (size_t t = 0; t < axes[1].size(); ++t) {
      for (size_t c = 0; c < axes[2].size(); ++c) {
        Candidate& candidate = candidates_.emplace_back();
        candidate.values = {axes[0][f], axes[1][t], axes[2][c]};
        candidate.point = {Position(f, axes[0].size()), Position(t, axes[1].size()), Position(c, axes[2].size())};
        if (candidate.values == start) start_ = candidates_.size() - 1;
      }
    }
  }
}

// Plan the first samples: the starting values, then each knob at both its ends, where the model learns most.
void Autotuner::PlanOpening(const std::vector<std::vector<uint64_t>>& axes) {
  plan_ = {start_};
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    for (double end : {0.0, 1.0}) {
      GaussianProcess::Point point = candidates_[start_].point;
      if (axes[axis].size() == 1 || point[axis] == end) continue;
      point[axis] = end;
      plan_.push_back(IndexOf(point));
    }
  }
}

size_t Autotuner::IndexOf(const GaussianProcess::Point& point) const {
  return static_cast<size_t>(std::find_if(candidates_.begin(), candidates_.end(),
                                          [&](const Candidate& candidate) { return candidate.point == point; }) -
                             candidates_.begin());
}

void Autotuner::AddSample(double bytes, double seconds) {
  if (phase_ == Phase::kChosen) return;
  const bool sound = bytes > 0 && seconds > 0;
  if (phase_ != Phase::kWarmup && !sound) return;  // repeat the sample, because it gives no information
  if (phase_ != Phase::kWarmup) candidates_[current_].scores.push_back(std::log(bytes / seconds));
  ++samples_;
  Advance();
}

double Autotuner::score() const {
  const std::vector<double>& scores = candidates_[current_].scores;
  return scores.empty() ? 0 : std::exp(Median(scores));
}

void Autotuner::Advance() {
  if (phase_ == Phase::kWarmup) {
    if (samples_ < options_.warmup_samples) return;
    phase_ = Phase::kSearch;
    samples_ = 0;
  }
  if (phase_ == Phase::kSearch && samples_ < options_.search_samples) {
    if (IsDoubtful()) return;
    if (opened_ < plan_.size()) {
      current_ = plan_[opened_++];
    } else {
      Learn();
      current_ = MostPromising();
    }
    return;
  }
  if (phase_ == Phase::kSearch) {
    Learn();
    PlanFinals();
    phase_ = Phase::kFinal;
    samples_ = 0;
  }
  if (static_cast<size_t>(samples_) < plan_.size()) {
    current_ = plan_[static_cast<size_t>(samples_)];
  } else {
    Choose();
  }
}

// Fit the model to the measured scores, normalised to median 0 and spread 1.
void Autotuner::Learn() {
  std::vector<GaussianProcess::Point> points;
  std::vector<double> values;
  for (const Candidate& candidate : candidates_) {
    if (candidate.scores.empty()) continue;
    points.insert(points.end(), candidate.scores.size(), candidate.point);
    // Take the better one of two scores, because disturbances only ever slow a sample down.
    const double typical =
        candidate.scores.size() == 2 ? std::max(candidate.scores[0], candidate.scores[1]) : Median(candidate.scores);
    values.insert(values.end(), candidate.scores.size(), typical);
  }
  const double middle = Median(values);
  double spread = 0;
  for (double value : values) spread += (value - middle) * (value - middle);
  spread = std::max(std::sqrt(spread / static_cast<double>(values.size())), kLeastSpread);
  for (double& value : values) value = (value - middle) / spread;
  model_.Fit(std::move(points), values);
  best_ = -HUGE_VAL;
  for (const Candidate& candidate : candidates_) {
    if (!candidate.scores.empty()) best_ = std::max(best_, model_.At(candidate.point).mean);
  }
}

// Return true if the only sample is far worse than the best so far. The cause is bad values or a disturbance; a second
// sample tells which.
bool Autotuner::IsDoubtful() const {
  if (candidates_[current_].scores.size() != 1) return false;
  double best = -HUGE_VAL;
  for (const Candidate& candidate : candidates_) {
    for (double score : candidate.scores) best = std::max(best, score);
  }
  return candidates_[current_].scores[0] < best + std::log(kDoubtful);
}

size_t Autotuner::MostPromising() const {
  size_t found = start_;
  double most = -1;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].scores.size() >= kMostVisits) continue;
    const double improvement = model_.ExpectedImprovement(candidates_[i].point, best_);
    if (improvement <= most) continue;
    most = improvement;
    found = i;
  }
  return found;
}

// Select the finalists: the starting values, the best measured candidate, and those with the highest means in the
// model.
void Autotuner::PlanFinals() {
  std::vector<size_t> order(candidates_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<double> means;
  for (const Candidate& candidate : candidates_) means.push_back(model_.At(candidate.point).mean);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return means[a] > means[b]; });
  size_t luckiest = start_;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].scores.empty()) continue;
    if (Median(candidates_[i].scores) > Median(candidates_[luckiest].scores)) luckiest = i;
  }
  order.insert(order.begin(), {start_, luckiest});
  finalists_.clear();
  for (size_t i = 0; i < order.size() && finalists_.size() < kFinalists; ++i) {
    const bool there = std::find(finalists_.begin(), finalists_.end(), order[i]) != finalists_.end();
    if (!there) finalists_.push_back(order[i]);
  }
  // Measure the finalists in turn, so that a disturbance of the machine affects all of them.
  plan_.clear();
  for (size_t round = 0; round < kFinalRounds; ++round) {
    plan_.insert(plan_.end(), finalists_.begin(), finalists_.end());
  }
}

// Choose a finalist with a better mean and a better measured median than the starting values, otherwise the starting
// values.
void Autotuner::Choose() {
  Learn();
  current_ = start_;
  double most = model_.At(candidates_[start_].point).mean;
  const double bar = Median(candidates_[start_].scores);
  for (size_t finalist : finalists_) {
    const double mean = model_.At(candidates_[finalist].point).mean;
    if (mean <= most || Median(candidates_[finalist].scores) <= bar) continue;
    current_ = finalist;
    most = mean;
  }
  phase_ = Phase::kChosen;
}

}  // namespace hvd
