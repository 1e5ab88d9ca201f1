// SPDX-License-Identifier: Apache-2.0
// Small allreduces on the fast path without the leader. A round is one run of a tensor, and a part is one member's
// contribution to it. The tests also use whole worlds, in which each rank chooses the fast path or the leader.
#include <doctest/doctest.h>

#include <random>

#include "agreement/coordinator.h"
#include "agreement/express.h"
#include "tests/coordinator_helpers.h"
#include "tests/whole_world.h"

using hvd::Code;
using hvd::Coordinator;
using hvd::DType;
using hvd::Express;
using hvd::OpKind;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;
using hvd::testing::Summary;

namespace {

const std::vector<Layout> kLayouts = {
    {2, 1, true, 4096}, {2, 1, false, 4096}, {3, 1, true, 4096}, {4, 1, false, 4096}, {3, 3, true, 4096},
};

Express::Piece Carried(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size(), 0};
}

std::string_view Text(const Express::Piece& piece) { return {reinterpret_cast<const char*>(piece.data), piece.size}; }

uint64_t Runs(Rank& self) {
  const std::string told = self.world().Describe();
  const std::string key = "\"express_runs\": ";
  return std::stoull(told.substr(told.find(key) + key.size()));
}

std::unique_ptr<hvd::Operation> Sum(Rank& self, const std::string& name, std::vector<int64_t>* data) {
  return self.Operation(OpKind::kAllreduce, name, DType::kInt64, {static_cast<int64_t>(data->size())}, data->data(),
                        data->data());
}

hvd::Status RunSum(Rank& self, const std::string& name, std::vector<int64_t>* data) {
  return self.Run(Sum(self, name, data));
}

// Run one sum with its full description, so that all ranks know it by its slot afterwards.
void Introduce(Rank& self, const std::string& name, size_t count = 4) {
  std::vector<int64_t> data(count, 1);
  CHECK(RunSum(self, name, &data).ok());
}

}  // namespace

TEST_CASE("express: a part lies where it came until it is kept") {
  Express express(2);
  std::vector<Express::Piece> parts;
  std::string message = "first", other = "second";
  CHECK(express.Add(3, 0, 0, 1, Carried(message)));
  express.Keep(3, 0, 0);
  message = "other";
  CHECK(express.Add(3, 0, 1, 1, Carried(other)));
  REQUIRE(express.Complete(3, &parts));
  CHECK(Text(parts[0]) == "first");
  CHECK(static_cast<const void*>(parts[1].data) == other.data());
  express.End(3);
  express.Keep(3, 0, 1);  // ignored, because the round has ended
  express.Keep(4, 0, 1);  // ignored, because no part of this slot exists
  CHECK_FALSE(express.Complete(3, &parts));
}

TEST_CASE("express: a round is complete when everybody's part is here") {
  Express express(3);
  std::vector<Express::Piece> parts;
  CHECK(express.Add(7, 0, 2, 1, Carried("cc")));
  CHECK(express.Add(7, 0, 0, 1, Carried("aa")));
  // For the next round: the sender had all parts of round 0, this rank does not yet.
  CHECK(express.Add(7, 1, 0, 1, Carried("AA")));
  CHECK_FALSE(express.Complete(7, &parts));
  CHECK(express.Add(7, 0, 1, 1, Carried("bb")));
  REQUIRE(express.Complete(7, &parts));
  CHECK(Text(parts[0]) == "aa");
  CHECK(Text(parts[1]) == "bb");
  CHECK(Text(parts[2]) == "cc");
  express.End(7);
  CHECK(express.Round(7) == 1);
  CHECK_FALSE(express.Complete(7, &parts));
  CHECK(express.Has(7, 0));
  CHECK_FALSE(express.Has(7, 1));
  CHECK_FALSE(express.Add(7, 0, 1, 1, Carried("late")));
  CHECK(express.Add(7, 1, 1, 1, Carried("BB")));
  CHECK(express.Add(7, 1, 2, 1, Carried("CC")));
  CHECK(express.Complete(7, &parts));
}

TEST_CASE("express: a record that ends a later round than ours is obeyed after ours") {
  Express express(2);
  std::vector<Express::Piece> parts;
  CHECK(express.Add(1, 0, 0, 1, Carried("a")));
  express.EndBy(1, 1);
  CHECK(express.Round(1) == 0);
  CHECK(express.Add(1, 0, 1, 1, Carried("b")));
  CHECK(express.Complete(1, &parts));
  express.End(1);
  CHECK(express.Round(1) == 2);
  CHECK_FALSE(express.Add(1, 1, 1, 1, Carried("failed")));
  express.EndBy(1, 2);
  CHECK(express.Round(1) == 3);
}

TEST_CASE("express: a round is over when it has ended, or when a record has ended it or a later one") {
  Express express(2);
  CHECK(express.Add(6, 0, 0, 1, Carried("a")));
  CHECK_FALSE(express.IsOver(6, 0));
  express.End(6);
  CHECK(express.Round(6) == 1);
  CHECK(express.IsOver(6, 0));
  CHECK_FALSE(express.IsOver(6, 1));
  express.EndBy(6, 2);
  CHECK(express.Round(6) == 1);
  CHECK(express.IsOver(6, 2));
  CHECK_FALSE(express.IsOver(6, 3));
}

TEST_CASE("express: what is heard of the next round waits for this one") {
  Express express(3);
  CHECK(express.Add(5, 0, 1, 1, Carried("b")));
  CHECK(express.Add(5, 1, 2, 4, Carried("C")));
  express.Postpone(5, {1, 9, false, std::nullopt});
  express.End(5);
  const auto reports = express.TakeCurrent(5);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].member == 1);
  CHECK_FALSE(reports[0].express);
  CHECK(reports[1].member == 2);
  CHECK(reports[1].seen == 4);
  CHECK(reports[1].express);
}

TEST_CASE("express: what a leader that leaves has finished is certain") {
  Express express(2);
  CHECK_FALSE(express.Settled(3, 0));
  express.Settle(3, 2);
  CHECK(express.Settled(3, 1));
  CHECK_FALSE(express.Settled(3, 2));
  CHECK(express.Rounds().empty());
  CHECK(express.Add(4, 0, 1, 1, Carried("x")));
  express.End(4);
  CHECK(express.Rounds() == std::vector<std::pair<uint32_t, uint32_t>>{{4, 1}});
}

TEST_CASE("express: the leader decides only what lacks a part") {
  Coordinator coordinator({0, 1, 2}, {});
  hvd::testing::RunAll(&coordinator, 3, hvd::testing::Allreduce("x"));
  for (int member = 0; member < 3; ++member) coordinator.OnReady(member, 0, 1, true);
  CHECK(coordinator.Decide().empty());
  CHECK(coordinator.Pending().empty());

  coordinator.OnReady(0, 0, 1, true);
  coordinator.OnReady(2, 0, 1, true);
  CHECK(coordinator.Pending()[0].missing == std::vector<int>{1});
  coordinator.OnReady(1, 0, 1);
  CHECK(Summary(coordinator.Decide()) == "#0");

  coordinator.OnReady(0, 0, 1, true);
  coordinator.OnRequest(1, hvd::testing::Allreduce("x", {3}));
  coordinator.OnReady(2, 0, 1, true);
  CHECK(Summary(coordinator.Decide()) == "E:x");

  coordinator.OnReady(0, 0, 1, true);
  coordinator.OnReady(1, 0, 1, true);
  coordinator.OnDeparture(2);
  CHECK(Summary(coordinator.Decide()) == "E:x");
}

TEST_CASE("world: a caller that waits for small tensors gets them express") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      Introduce(self, "x");
      for (int64_t step = 0; step < 50; ++step) {
        std::vector<int64_t> data(4, step + self.rank());
        CHECK(RunSum(self, "x", &data).ok());
        CHECK(data[3] == step * self.size() + self.size() * (self.size() - 1) / 2);
      }
      CHECK(Runs(self) == 50);
    });
  }
}

TEST_CASE("world: what is large, or comes in numbers, passes the leader") {
  RunWorld({2, 1, false, 4096, [](hvd::Settings* settings) { settings->express_bytes = 4; }}, [](Rank& self) {
    for (int step = 0; step < 3; ++step) {
      std::vector<int64_t> large(9, 1), first(1, 1), second(1, 2);
      CHECK(RunSum(self, "large", &large).ok());
      const int64_t one = self.Submit(Sum(self, "first", &first)), two = self.Submit(Sum(self, "second", &second));
      CHECK(self.Wait(one).ok());
      CHECK(self.Wait(two).ok());
      CHECK(large[8] + first[0] + second[0] == 8);
      self.world().Release(one);
      self.world().Release(two);
    }
    CHECK(Runs(self) == 0);
  });
}

TEST_CASE("world: every rank goes the way it likes, and all results are right") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      constexpr int kNames = 3;
      std::mt19937 random(static_cast<unsigned>(self.rank()) + 17);
      for (int64_t step = 0; step < 400; ++step) {
        const std::string name = "x" + std::to_string(step % kNames);
        std::vector<int64_t> data(2, step * (self.rank() + 1));
        const bool express = step < kNames || random() % 4 != 0;
        const int64_t handle = self.Submit(Sum(self, name, &data), express);
        hvd::Status status = self.Wait(handle);
        CHECK_MESSAGE(status.ok(), status.text);
        self.world().Release(handle);
        CHECK(data[1] == step * self.size() * (self.size() + 1) / 2);
      }
    });
  }
}

TEST_CASE("world: a mismatch is found among parts, and the tensor works afterwards") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      Introduce(self, "x");
      for (int step = 0; step < 10; ++step) {
        std::vector<int64_t> good(4, 1), odd(self.rank() == self.size() - 1 ? 5 : 4, 1);
        CHECK(RunSum(self, "x", &good).ok());
        CHECK(RunSum(self, "x", &odd).code == Code::kMismatch);
        CHECK(good[0] == self.size());
      }
    });
  }
}

TEST_CASE("world: who leaves after its last sum leaves nobody without it") {
  for (int leaver = 0; leaver < 3; ++leaver) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      RunWorld({3, 1, repeat % 2 == 0, 4096}, [leaver](Rank& self) {
        Introduce(self, "x");
        for (int step = 0; step < 5; ++step) {
          std::vector<int64_t> data(4, step);
          hvd::Status status = RunSum(self, "x", &data);
          CHECK_MESSAGE(status.ok(), status.text);
          CHECK(data[0] == step * 3);
        }
        if (self.rank() == leaver) return;
        std::vector<int64_t> data(4, 1);
        CHECK(RunSum(self, "x", &data).code == Code::kFailed);
      });
    }
  }
}

TEST_CASE("world: ranks join after different numbers of express steps") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      Introduce(self, "x");
      for (int epoch = 0; epoch < 3; ++epoch) {
        const int steps = 4 + 3 * ((self.rank() + epoch) % self.size());
        for (int step = 0; step < steps; ++step) {
          int64_t expected = 0;
          for (int rank = 0; rank < self.size(); ++rank) expected += step < 4 + 3 * ((rank + epoch) % self.size());
          std::vector<int64_t> data(4, 1);
          hvd::Status status = RunSum(self, "x", &data);
          CHECK_MESSAGE(status.ok(), status.text);
          CHECK(data[2] == expected);
        }
        CHECK(self.Run(self.Operation<char>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr)).ok());
      }
    });
  }
}
