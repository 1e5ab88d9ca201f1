// SPDX-License-Identifier: Apache-2.0
// Whole worlds that are tuned while they work: every rank switches at the same record, and results never change.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/whole_world.h"

using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

constexpr int kSearch = 7;
constexpr int kMostSteps = 400;  // far more than the tuning needs

void TuneFast(hvd::Settings* settings) {
  settings->autotune = true;
  settings->autotune_warmup_samples = 1;
  settings->autotune_steps_per_sample = 1;
  settings->autotune_max_samples = kSearch;
  settings->cycle_time_us = 300;
}

const std::vector<Layout> kLayouts = {
    {1, 1, true, 65536, TuneFast}, {2, 1, true, 65536, TuneFast}, {2, 1, false, 65536, TuneFast},
    {3, 1, true, 65536, TuneFast}, {4, 2, true, 65536, TuneFast}, {3, 3, true, 65536, TuneFast},
};

std::string Text(const Layout& layout) {
  return std::to_string(layout.ranks) + " ranks on " + std::to_string(layout.hosts) + " hosts, memory " +
         std::to_string(layout.memory);
}

// Return the part of the engine's description that tuning changes.
std::string TuningOf(Rank& self) {
  const std::string all = self.world().Describe();
  const size_t begin = all.find("\"autotune\"");
  return all.substr(begin, all.find(", \"peers") - begin);
}

bool IsDone(Rank& self) { return TuningOf(self).find("\"done\"") != std::string::npos; }

// Several concurrent collectives with known results.
class Step {
 public:
  Step(Rank& self, const std::string& prefix, int process_set = 0, int first = 0, int members = 0)
      : self_(self), sum_(0), members_(members ? members : self.size()), sums_{{}, {}, {}}, part_(1) {
    for (int i = 0; i < members_; ++i) sum_ += first + i + 1;
    size_t number = 0;
    for (size_t count : {size_t{20}, size_t{9000}, size_t{40000}}) {
      std::vector<int32_t>& data = sums_[number++];
      data.assign(count, self.rank() + 1);
      Start(OpKind::kAllreduce, prefix + "sum" + std::to_string(count), data, data, process_set);
    }
    shared_.assign(20000, self.rank());
    Start(OpKind::kBroadcast, prefix + "share", shared_, shared_, process_set, first);
    scattered_.assign(static_cast<size_t>(members_) * 9000, self.rank() + 1);
    part_.resize(9000);
    Start(OpKind::kReducescatter, prefix + "part", scattered_, part_, process_set);
    root_ = first;
  }

  void Check() {
    for (int64_t handle : handles_) {
      const hvd::Status status = self_.Wait(handle);
      CHECK_MESSAGE(status.ok(), status.text);
      self_.world().Release(handle);
    }
    bool right = true;
    for (const auto& data : sums_) {
      for (int32_t value : data) right &= value == sum_;
    }
    for (int32_t value : shared_) right &= value == root_;
    for (int32_t value : part_) right &= value == sum_;
    CHECK(right);
  }

 private:
  void Start(OpKind kind, const std::string& name, std::vector<int32_t>& in, std::vector<int32_t>& out, int process_set,
             int root = -1) {
    auto operation =
        self_.Operation<int32_t>(kind, name, DType::kInt32, {static_cast<int64_t>(in.size())}, in.data(), out.data());
    operation->request.root = root;
    operation->process_set = process_set;
    handles_.push_back(self_.Submit(std::move(operation)));
    CHECK(handles_.back() > 0);
  }

  Rank& self_;
  int32_t sum_, root_ = 0;
  int members_;
  std::vector<std::vector<int32_t>> sums_;
  std::vector<int32_t> shared_, scattered_, part_;
  std::vector<int64_t> handles_;
};

// Return true on all ranks in the same step, because all compare the same sum.
bool AllDone(Rank& self) {
  int32_t done = IsDone(self);
  CHECK(self.Run(self.Operation<int32_t>(OpKind::kAllreduce, "all done", DType::kInt32, {1}, &done, &done)).ok());
  return done == self.size();
}

// Texts of all ranks, compared after the world has closed.
class Collected {
 public:
  void Add(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    texts_.insert(text);
  }
  const std::set<std::string>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::set<std::string> texts_;
};

}  // namespace

TEST_CASE("world: results stay right while the values change, and all ranks end with the same ones") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    Collected chosen, seen;
    RunWorld(layout, [&](Rank& self) {
      int steps = 0;
      do {
        // Two steps run at once, so that values change while collectives are in flight.
        Step even(self, "even"), odd(self, "odd");
        even.Check();
        odd.Check();
        if (self.rank() == 0) seen.Add(TuningOf(self));
      } while (!AllDone(self) && ++steps < kMostSteps);
      CHECK(IsDone(self));
      const std::string final = TuningOf(self);
      chosen.Add(final);
      for (int after = 0; after < 8; ++after) {
        Step(self, "after").Check();
        CHECK(TuningOf(self) == final);
      }
    });
    CHECK(chosen.texts().size() == 1);
    CHECK(seen.texts().size() > 3);
  }
}

TEST_CASE("world: tuning with process sets, joins and mismatches beside it") {
  RunWorld({4, 1, true, 65536, TuneFast}, [](Rank& self) {
    int id = 0;
    for (int step = 0; step < kMostSteps && !AllDone(self); ++step) {
      if (step % 10 == 0) {  // create sets before and after the values change
        auto add = self.Operation<char>(OpKind::kAddProcessSet, "add", DType::kUInt8, {}, nullptr, nullptr);
        add->request.splits = {2, 3};
        CHECK(self.Run(std::move(add)).ok());
        id = static_cast<int>(self.last->value);
      }
      Step all(self, "all");
      if (self.rank() >= 2) Step(self, "pair", id, 2, 2).Check();
      all.Check();
      std::vector<float> wrong(static_cast<size_t>(self.rank()) + 1);
      const auto shape = static_cast<int64_t>(wrong.size());
      CHECK(self.Run(self.Operation<float>(OpKind::kAllreduce, "wrong", DType::kFloat32, {shape}, wrong.data(),
                                           wrong.data()))
                .code == hvd::Code::kMismatch);
      if (self.rank() == 1) {  // one collective more than the other ranks, which join
        std::vector<int32_t> data(40000, 5);
        CHECK(self.Run(self.Operation<int32_t>(OpKind::kAllreduce, "more", DType::kInt32, {40000}, data.data(),
                                               data.data()))
                  .ok());
        CHECK(data[39999] == 5);
      }
      CHECK(self.Run(self.Operation<char>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr)).ok());
      if (step % 10 == 9) {
        auto remove = self.Operation<char>(OpKind::kRemoveProcessSet, "remove", DType::kUInt8, {}, nullptr, nullptr);
        remove->request.splits = {id};
        CHECK(self.Run(std::move(remove)).ok());
      }
    }
    CHECK(IsDone(self));
  });
}

TEST_CASE("world: a shutdown in the middle of tuning ends like any other") {
  std::atomic<int> failed{0};
  RunWorld({3, 1, true, 65536, TuneFast}, [&failed](Rank& self) {
    for (int step = 0; step < 6; ++step) Step(self, "step").Check();
    CHECK_FALSE(IsDone(self));
    if (self.rank() == 0) return;  // the leader closes its world
    std::vector<int32_t> data(10);
    const hvd::Status status =
        self.Run(self.Operation<int32_t>(OpKind::kAllreduce, "late", DType::kInt32, {10}, data.data(), data.data()));
    CHECK(status.code == hvd::Code::kFailed);
    CHECK(status.text.find("rank 0") != std::string::npos);
    ++failed;
    while (failed < 2) std::this_thread::yield();  // if this rank left first, the other one might name it instead
  });
}

TEST_CASE("world: what the user fixed stays fixed") {
  auto fixed = [](hvd::Settings* settings) {
    TuneFast(settings);
    settings->autotune_fixed = hvd::kFixedCycle | hvd::kFixedChunk;
  };
  Collected seen;
  RunWorld({2, 1, true, 65536, fixed}, [&](Rank& self) {
    for (int steps = 0; steps < kMostSteps && !AllDone(self); ++steps) {
      Step(self, "step").Check();
      seen.Add(TuningOf(self));
    }
    CHECK(IsDone(self));
  });
  for (const std::string& tuning : seen.texts()) {
    CHECK(tuning.find("\"cycle_time_us\": 300, \"chunk_bytes\": 65536") != std::string::npos);
  }
  CHECK(seen.texts().size() > 3);
}
