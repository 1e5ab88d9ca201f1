// SPDX-License-Identifier: Apache-2.0
// What the leader measures: steps found by repeated names, samples with simulated clocks, and the log file.
#include "tuning/tuning_session.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/coordinator_helpers.h"

using hvd::Entry;
using hvd::OpKind;
using hvd::Settings;
using hvd::StepFinder;
using hvd::Tuning;
using hvd::TuningSession;
using hvd::testing::Allreduce;
using hvd::testing::Make;

namespace {

Settings Fast() {
  Settings settings;
  settings.autotune = true;
  settings.autotune_warmup_samples = 1;
  settings.autotune_steps_per_sample = 2;
  settings.autotune_max_samples = 5;
  return settings;
}

class TemporaryFile {
 public:
  TemporaryFile() {
    const int fd = mkstemp(name_);
    REQUIRE(fd >= 0);
    close(fd);
  }
  ~TemporaryFile() { unlink(name_); }
  std::string name() const { return name_; }
  std::vector<std::string> lines() const {
    std::ifstream in(name_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  char name_[32] = "/tmp/hvd-autotune-XXXXXX";
};

hvd::Entries Batch(const std::vector<hvd::Request>& requests) {
  hvd::Entries entries;
  for (const hvd::Request& request : requests) {
    Entry entry;
    entry.request = request;
    entries.push_back(std::make_shared<const Entry>(entry));
  }
  return entries;
}

// Train with 1000 bytes a step, each of which takes `milliseconds(values)`, until a result is final. Return the
// published values.
template <typename Time>
std::vector<Tuning> Train(TuningSession* session, Tuning values, Time milliseconds, int most_steps = 1000) {
  std::vector<Tuning> published;
  TuningSession::Clock::time_point now{};
  for (int step = 0; step < most_steps && (published.empty() || !published.back().final); ++step) {
    std::optional<Tuning> next = session->OnBatch(Batch({Allreduce("a", {100})}), now);
    CHECK_FALSE(session->OnBatch(Batch({Allreduce("b", {150}), Make(OpKind::kBarrier, "barrier")}), now).has_value());
    now += std::chrono::milliseconds(milliseconds(values));
    if (!next) continue;
    published.push_back(*next);
    values = *next;
  }
  return published;
}

}  // namespace

TEST_CASE("autotune: a step begins where a name comes again") {
  StepFinder finder;
  for (int step = 0; step < 3; ++step) {
    CHECK(finder.Begins(Allreduce("a")) == (step > 0));
    CHECK_FALSE(finder.Begins(Allreduce("b")));
    CHECK_FALSE(finder.Begins(Allreduce("allreduce.noname.7")));
  }
  int steps = 0;
  for (int i = 0; i < 200000; ++i) steps += finder.Begins(Allreduce("unique" + std::to_string(i)));
  CHECK(steps == 3);  // names that occur only once do not accumulate
}

TEST_CASE("autotune: the session finds the faster chunks, logs every sample and ends") {
  TemporaryFile file;
  Settings settings = Fast();
  settings.autotune_log = file.name();
  const Tuning start = hvd::InitialTuning(settings);
  TuningSession session(settings, {true, false});
  const std::vector<Tuning> published =
      Train(&session, start, [](const Tuning& values) { return values.chunk_bytes == 64 << 10 ? 10 : 20; });
  REQUIRE(!published.empty());
  CHECK(published.back().final);
  CHECK(published.back().chunk_bytes == 64 << 10);
  const std::vector<std::string> lines = file.lines();
  REQUIRE(lines.size() == 1 + 1 + 5 + 12 + 1);
  CHECK(lines[0] ==
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
        "tensor_fusion_threshold,score,chunk_bytes,phase");
  // Two steps of 1000 bytes in 40 ms. The step in which values change counts for neither sample.
  CHECK(lines[1] == "1,0,0,1,1,134217728,50000,262144,warmup");
  CHECK(lines[2] == "1,0,0,1,1,134217728,50000,262144,search");
  CHECK(lines.back().find(",100000,65536,chosen") != std::string::npos);
}

TEST_CASE("autotune: with everything fixed the session ends at the first step and says so") {
  TemporaryFile file;
  Settings settings = Fast();
  settings.autotune_log = file.name();
  settings.autotune_fixed = hvd::kFixedFusion | hvd::kFixedCycle | hvd::kFixedChunk;
  TuningSession session(settings, {});
  const std::vector<Tuning> published = Train(&session, hvd::InitialTuning(settings), [](const Tuning&) { return 10; });
  REQUIRE(published.size() == 1);
  CHECK(published[0].final);
  CHECK(published[0] == hvd::InitialTuning(settings));
  CHECK(file.lines().back() == "0,0,0,1,1,134217728,0,262144,chosen");
}

TEST_CASE("autotune: a log that cannot be written is a warning, not an end") {
  for (const char* path : {"/nonexistent/folder/log.csv", "/dev/full"}) {
    Settings settings = Fast();
    settings.autotune_log = path;
    TuningSession session(settings, {});
    CHECK(Train(&session, hvd::InitialTuning(settings), [](const Tuning&) { return 10; }).back().final);
  }
}

TEST_CASE("autotune: room for the largest chunk only where chunks are tuned") {
  Settings settings;
  CHECK(hvd::LargestChunk(settings) == settings.slot_bytes);
  settings.autotune = true;
  CHECK(hvd::LargestChunk(settings) == hvd::Autotuner::kLargestChunk);
  settings.slot_bytes = 4 * hvd::Autotuner::kLargestChunk;
  CHECK(hvd::LargestChunk(settings) == settings.slot_bytes);
  settings.slot_bytes = 4096;
  settings.autotune_fixed = hvd::kFixedChunk;
  CHECK(hvd::LargestChunk(settings) == 4096);
}
