// SPDX-License-Identifier: Apache-2.0
// The autotuner: on a recorded workload with added noise, and one test for each of its rules.
#include "tuning/autotune.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "tests/repeats.h"

using hvd::AutotuneOptions;
using hvd::Autotuner;
using hvd::GaussianProcess;
using hvd::Repeats;
using hvd::Tuning;
using Phase = hvd::Autotuner::Phase;

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kFinalSamples = 12;

struct GridPoint {
  uint64_t fusion_threshold, cycle_time_us, chunk_bytes;
  double score;
};
const std::vector<GridPoint> kResNet50 = {
#include "tests/resnet50_grid.inc"
};

double Recorded(const Tuning& values) {
  for (const GridPoint& point : kResNet50) {
    if (values == Tuning{point.fusion_threshold, point.cycle_time_us, point.chunk_bytes}) return point.score;
  }
  FAIL("the grid has no such point");
  return 0;
}

double BestRecorded() {
  return std::max_element(kResNet50.begin(), kResNet50.end(),
                          [](const GridPoint& a, const GridPoint& b) { return a.score < b.score; })
      ->score;
}

AutotuneOptions Defaults() {
  AutotuneOptions options;
  options.start = {128 * kMiB, 1000, 256 << 10};
  return options;
}

using Landscape = std::function<double(const Tuning&)>;

// Run the tuning until it has chosen. Return the number of samples that it took.
int Tune(Autotuner* tuner, const Landscape& measure) {
  int samples = 0;
  for (; tuner->phase() != Phase::kChosen; ++samples) {
    REQUIRE(samples < 1000);
    tuner->AddSample(measure(tuner->values()), 1.0);
  }
  return samples;
}

// Return a landscape with noise: each sample is off by about `noise`, and one in twenty shows half of the throughput.
Landscape Noisy(const Landscape& measure, double noise, std::mt19937* random) {
  return [=](const Tuning& values) {
    std::normal_distribution<double> normal(0, noise);
    const double disturbed = (*random)() % 20 == 0 ? 0.5 : 1.0;
    return measure(values) * std::exp(normal(*random)) * disturbed;
  };
}

}  // namespace

TEST_CASE("autotune: within 5 % of the best point of a recorded grid, disturbed samples and all") {
  const double best = BestRecorded();
  REQUIRE(Recorded(Defaults().start) < 0.95 * best);  // the starting values leave room for improvement
  for (double noise : {0.0, 0.02, 0.05}) {
    double worst = 1;
    int misses = 0;
    for (unsigned seed = 1; seed <= Repeats(50); ++seed) {
      std::mt19937 random(seed);
      Autotuner tuner(Defaults());
      const int samples = Tune(&tuner, Noisy(Recorded, noise, &random));
      CHECK(samples == 3 + 20 + kFinalSamples);
      const double ratio = Recorded(tuner.values()) / best;
      worst = std::min(worst, ratio);
      misses += ratio < 0.95;
    }
    CAPTURE(noise);
    CHECK(misses <= (noise > 0.02 ? 5 : 0));  // with noise as large as the 5 % target, one in ten may miss
    CHECK(worst > 0.9);
  }
}

TEST_CASE("autotune: heavy noise or few samples may miss the best, but not by choosing what is worse") {
  for (int search : {1, 4, 20}) {
    double mean = 0;
    for (unsigned seed = 1; seed <= Repeats(40); ++seed) {
      std::mt19937 random(seed);
      AutotuneOptions options = Defaults();
      options.search_samples = search;
      Autotuner tuner(options);
      Tune(&tuner, Noisy(Recorded, 0.15, &random));
      const double gain = Recorded(tuner.values()) / Recorded(options.start);
      CHECK(gain > 0.8);
      mean += gain / Repeats(40);
    }
    CAPTURE(search);
    CHECK(mean > (search == 20 ? 1.2 : 0.99));
  }
}

TEST_CASE("autotune: the starting values stay where nothing measured better") {
  const Tuning start = Defaults().start;
  for (double others : {1.0, 0.5}) {
    Autotuner tuner(Defaults());
    Tune(&tuner, [&](const Tuning& values) { return values == start ? 100.0 : 100.0 * others; });
    CHECK(tuner.values() == start);
    CHECK(tuner.score() == doctest::Approx(100));
  }
}

TEST_CASE("autotune: what the user fixed is never touched") {
  for (int fixed = 0; fixed < 8; ++fixed) {
    AutotuneOptions options = Defaults();
    options.start = {5 * kMiB, 0, 100 << 10};  // no value lies on the grid
    options.fixed_fusion = fixed & 1;
    options.fixed_cycle = fixed & 2;
    options.fixed_chunk = fixed & 4;
    Autotuner tuner(options);
    std::vector<Tuning> tried;
    const int samples = Tune(&tuner, [&](const Tuning& values) {
      tried.push_back(values);
      return 1e9 / (1.0 + static_cast<double>(tried.size() % 3));
    });
    const auto varies = [&](auto field) {
      return std::any_of(tried.begin(), tried.end(), [&](const Tuning& t) { return t.*field != options.start.*field; });
    };
    CAPTURE(fixed);
    CHECK(varies(&Tuning::fusion_threshold) == !(fixed & 1));
    CHECK(varies(&Tuning::cycle_time_us) == !(fixed & 2));
    CHECK(varies(&Tuning::chunk_bytes) == !(fixed & 4));
    CHECK((samples == 0) == (fixed == 7));
    for (const Tuning& t : tried) CHECK(t.chunk_bytes <= Autotuner::kLargestChunk);
  }
}

TEST_CASE("autotune: warm-up samples count for nothing, and are measured with the starting values") {
  AutotuneOptions options = Defaults();
  options.warmup_samples = 2;
  Autotuner tuner(options);
  for (int i = 0; i < 2; ++i) {
    CHECK(tuner.phase() == Phase::kWarmup);
    CHECK(tuner.values() == options.start);
    tuner.AddSample(1, 1e9);
  }
  CHECK(tuner.phase() == Phase::kSearch);
  CHECK(tuner.values() == options.start);
  Tune(&tuner, [&](const Tuning& values) { return values == options.start ? 2.0 : 1.0; });
  CHECK(tuner.values() == options.start);
}

TEST_CASE("autotune: no samples, no change; a sample without time or bytes is taken again") {
  AutotuneOptions options = Defaults();
  options.search_samples = 0;
  CHECK(Autotuner(options).phase() == Phase::kChosen);
  options.search_samples = 3;
  options.warmup_samples = 0;
  Autotuner tuner(options);
  CHECK(tuner.phase() == Phase::kSearch);
  tuner.AddSample(0, 1);
  tuner.AddSample(1, 0);
  CHECK(Tune(&tuner, Recorded) == 3 + kFinalSamples);
  const Tuning chosen = tuner.values();
  tuner.AddSample(1, 1e9);  // ignored, because the tuning has ended
  CHECK(tuner.values() == chosen);
}

TEST_CASE("gaussian process: goes through what it was told, is unsure elsewhere, and expects more there") {
  GaussianProcess process(0.0);
  process.Fit({{0, 0, 0}, {1, 1, 1}, {0.5, 0.5, 0.5}}, {-1, 1, 0.5});
  CHECK(process.At({0, 0, 0}).mean == doctest::Approx(-1).epsilon(0.01));
  CHECK(process.At({1, 1, 1}).mean == doctest::Approx(1).epsilon(0.01));
  CHECK(process.At({1, 1, 1}).deviation < 0.01);
  CHECK(process.At({1, 0, 1}).deviation > 0.3);
  CHECK(process.At({0.8, 0.8, 0.8}).mean > process.At({0.2, 0.2, 0.2}).mean);
  CHECK(process.ExpectedImprovement({1, 0, 1}, 1) > process.ExpectedImprovement({0, 0, 0}, 1));
  GaussianProcess noisy(0.8);
  noisy.Fit({{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, {3, 1, 2});
  CHECK(noisy.At({0, 0, 0}).mean < 2);  // estimates the mean, drawn towards 0 because of the noise
  CHECK(noisy.At({0, 0, 0}).mean > 1);
}
