// SPDX-License-Identifier: Apache-2.0
// The response cache: slots are assigned, used, replaced and evicted while some members have not applied the log yet.
#include <doctest/doctest.h>

#include "agreement/coordinator.h"
#include "agreement/tensor_table.h"
#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using testing::Allreduce;
using testing::Alltoall;
using testing::Grouped;
using testing::Make;
using testing::Run;
using testing::RunAll;
using testing::Summary;

CoordinatorOptions Capacity(size_t slots) {
  CoordinatorOptions options;
  options.cache_capacity = slots;
  return options;
}

TEST_CASE("the first success gives a slot, later rounds are the slot alone") {
  Coordinator coordinator({0, 1}, {});
  const auto records = RunAll(&coordinator, 2, Allreduce("x"));
  CHECK(records[0].entries[0].slot == 0);
  CHECK_FALSE(records[0].entries[0].cached);
  for (uint64_t round = 1; round < 4; ++round) {
    coordinator.OnReady(1, 0, round);
    CHECK(coordinator.Decide().empty());
    CHECK(coordinator.Pending()[0].name == "x");
    coordinator.OnReady(1, 0, round);  // a second report by the same member does not count
    CHECK(coordinator.Decide().empty());
    coordinator.OnReady(0, 0, round);
    const auto cached = coordinator.Decide();
    CHECK(Summary(cached) == "#0");
    CHECK(cached[0].entries[0].request == Request());
    CHECK(cached[0].sequence == round + 1);
    CHECK(coordinator.Pending().empty());
  }
}

TEST_CASE("which kinds are remembered") {
  Coordinator coordinator({0}, {});
  uint32_t next = 0;
  for (OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast, OpKind::kReducescatter}) {
    CHECK(RunAll(&coordinator, 1, Make(kind, NameOf(kind)))[0].entries[0].slot == next++);
  }
  CHECK(RunAll(&coordinator, 1, Alltoall("a2a", {1}))[0].entries[0].slot == next++);
  CHECK(RunAll(&coordinator, 1, Make(OpKind::kBarrier, "barrier"))[0].entries[0].slot == kNoSlot);
}

TEST_CASE("without capacity nothing is remembered") {
  Coordinator coordinator({0}, Capacity(0));
  for (int round = 0; round < 3; ++round) {
    const auto records = RunAll(&coordinator, 1, Allreduce("x"));
    REQUIRE(Summary(records) == "x");
    CHECK(records[0].entries[0].slot == kNoSlot);
  }
}

TEST_CASE("cached tensors are fused with each other and with new ones") {
  Coordinator coordinator({0, 1}, {});
  for (int member = 0; member < 2; ++member) {
    coordinator.OnRequest(member, Grouped(Allreduce("a"), "g", 2));
    coordinator.OnRequest(member, Grouped(Allreduce("b"), "g", 2));
  }
  CHECK(Summary(coordinator.Decide()) == "a b");
  for (int member = 0; member < 2; ++member) {
    coordinator.OnReady(member, 1, 1);
    coordinator.OnRequest(member, Allreduce("c"));
  }
  CHECK(Summary(coordinator.Decide()) == "c");  // the group is not complete
  for (int member = 0; member < 2; ++member) coordinator.OnReady(member, 0, 2);
  CHECK(Summary(coordinator.Decide()) == "#1 #0");
  for (int member = 0; member < 2; ++member) {
    coordinator.OnReady(member, 2, 3);
    coordinator.OnRequest(member, Allreduce("d"));
  }
  CHECK(Summary(coordinator.Decide()) == "#2 d");
}

TEST_CASE("a new description replaces the slot, evicted before the batch that brings the new one") {
  Coordinator coordinator({0, 1}, {});
  RunAll(&coordinator, 2, Allreduce("x", {2}));
  auto records = RunAll(&coordinator, 2, Allreduce("x", {3}));
  CHECK(Summary(records) == "-0 | x");
  CHECK(records[0].sequence == 2);
  CHECK(records[1].entries[0].slot == 1);
  coordinator.OnReady(0, 1, 3);
  coordinator.OnReady(1, 1, 3);
  CHECK(Summary(coordinator.Decide()) == "#1");
}

TEST_CASE("slot and description of one tensor are compared, in either order, and the slot survives an error") {
  for (bool slot_first : {false, true}) {
    Coordinator coordinator({0, 1, 2}, {});
    RunAll(&coordinator, 3, Allreduce("x", {2}));
    const auto report = [&](std::vector<int64_t> shape) {
      if (slot_first) coordinator.OnReady(0, 0, 1);
      coordinator.OnRequest(1, Allreduce("x", shape));
      if (!slot_first) coordinator.OnReady(0, 0, 1);
      coordinator.OnReady(2, 0, 1);
      return coordinator.Decide();
    };
    auto records = report({3});
    REQUIRE(Summary(records) == "E:x");
    CHECK(records[0].error.text.find("[2] on rank 0 but [3] on rank 1") != std::string::npos);
    for (int member = 0; member < 3; ++member) coordinator.OnReady(member, 0, 2);
    CHECK(Summary(coordinator.Decide()) == "#0");
    CHECK(Summary(report({2})) == "-0 | x");
  }
}

TEST_CASE("a refused description leaves no trace in the slot") {
  Coordinator coordinator({0, 1}, {});
  RunAll(&coordinator, 2, Allreduce("x"));
  coordinator.OnRequest(0, Grouped(Allreduce("x"), "g", 2));
  coordinator.OnReady(1, 0, 1);
  CHECK(Summary(coordinator.Decide()) == "E:x");
  for (int member = 0; member < 2; ++member) coordinator.OnReady(member, 0, 2);
  CHECK(Summary(coordinator.Decide()) == "#0");
}

TEST_CASE("an allgather's slot keeps the rows of each member, an alltoall's the splits") {
  Coordinator coordinator({0, 1}, {});
  Run(&coordinator, {Make(OpKind::kAllgather, "g", {3, 2}), Make(OpKind::kAllgather, "g", {5, 2})});
  coordinator.OnRequest(0, Make(OpKind::kAllgather, "g", {4, 2}));
  coordinator.OnReady(1, 0, 1);
  auto records = coordinator.Decide();
  REQUIRE(Summary(records) == "-0 | g");
  CHECK(records[1].entries[0].sizes == std::vector<int64_t>{4, 5});

  Run(&coordinator, {Alltoall("a", {1, 2}), Alltoall("a", {7, 1})});
  coordinator.OnRequest(0, Alltoall("a", {3, 3}));
  coordinator.OnReady(1, 2, 4);
  records = coordinator.Decide();
  REQUIRE(Summary(records) == "-2 | a");
  CHECK(records[1].entries[0].sizes == std::vector<int64_t>{7, 3, 3, 7, 1});
}

TEST_CASE("the least recently used slot goes first") {
  Coordinator coordinator({0}, Capacity(3));
  for (const char* name : {"a", "b", "c"}) RunAll(&coordinator, 1, Allreduce(name));
  coordinator.OnReady(0, 0, 3);
  CHECK(Summary(coordinator.Decide()) == "#0");
  CHECK(Summary(RunAll(&coordinator, 1, Allreduce("d"))) == "-1 | d");
  CHECK(Summary(RunAll(&coordinator, 1, Allreduce("e"))) == "-2 | e");
  coordinator.OnReady(0, 0, 8);
  CHECK(Summary(coordinator.Decide()) == "#0");
  const auto records = RunAll(&coordinator, 1, Allreduce("b"));
  CHECK(Summary(records) == "-3 | b");
  CHECK(records[1].entries[0].slot == 5);                         // a slot number is never reused
  for (uint32_t slot : {0, 4}) coordinator.OnReady(0, slot, 11);  // used together in one batch
  CHECK(Summary(coordinator.Decide()) == "#0 #4");
  CHECK(Summary(RunAll(&coordinator, 1, Allreduce("f"))) == "-5 | f");
}

TEST_CASE("the cache grows with the model, up to its bound") {
  const CoordinatorOptions usual;
  REQUIRE(usual.cache_capacity >= 30000);
  constexpr uint32_t kTensors = 30000;
  const auto name = [](uint32_t number) { return "layers." + std::to_string(number) + ".weight"; };
  SUBCASE("without evicting anything by default") {
    Coordinator coordinator({0, 1}, usual);
    for (int member = 0; member < 2; ++member) {
      for (uint32_t i = 0; i < kTensors; ++i) coordinator.OnRequest(member, Allreduce(name(i)));
    }
    const auto records = coordinator.Decide();
    REQUIRE(records.size() == 1);
    CHECK(records[0].entries.back().slot == kTensors - 1);
    for (int member = 0; member < 2; ++member) {
      for (uint32_t slot = 0; slot < kTensors; ++slot) coordinator.OnReady(member, slot, 1);
    }
    const auto again = coordinator.Decide();
    REQUIRE(again.size() == 1);
    CHECK(again[0].entries.size() == kTensors);
    CHECK(again[0].entries.back().cached);
  }
  SUBCASE("and stays below a bound that was given, at no more cost for each tensor") {
    Coordinator coordinator({0}, Capacity(10000));
    for (uint32_t i = 0; i < kTensors; ++i) coordinator.OnRequest(0, Allreduce(name(i)));
    const auto records = coordinator.Decide();
    REQUIRE(records.size() == 1);
    CHECK(records[0].entries[9999].slot == 9999);
    CHECK(records[0].entries[10000].slot == kNoSlot);
    for (uint32_t i = 0; i < kTensors; ++i) coordinator.OnRequest(0, Allreduce(name(kTensors + i)));
    const auto others = coordinator.Decide();
    REQUIRE(others.size() == 2);
    CHECK(others[0].evicted.size() == 10000);
    CHECK(others[0].evicted.front() == 0);
  }
}

TEST_CASE("a slot that is waited for stays, and a tensor without room goes without") {
  Coordinator coordinator({0, 1}, Capacity(1));
  RunAll(&coordinator, 2, Allreduce("a"));
  coordinator.OnReady(0, 0, 1);
  auto records = RunAll(&coordinator, 2, Allreduce("b"));
  CHECK(Summary(records) == "b");
  CHECK(records[0].entries[0].slot == kNoSlot);
  coordinator.OnReady(1, 0, 2);
  CHECK(Summary(coordinator.Decide()) == "#0");
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("b"))) == "-0 | b");

  // Both are decided together, and the batch must not evict a slot that it uses.
  coordinator.OnReady(0, 1, 5);
  coordinator.OnReady(1, 1, 5);
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("c"))) == "#1 c");
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("c"))) == "-1 | c");
}

TEST_CASE("a slot evicted after what the member has seen is still understood") {
  Coordinator coordinator({0, 1}, Capacity(1));
  RunAll(&coordinator, 2, Allreduce("a", {7}));
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("b"))) == "-0 | b");
  coordinator.OnReady(0, 0, 1);  // sent before this member applied record 2, which evicts slot 0
  coordinator.OnReady(1, 0, 1);
  const auto records = coordinator.Decide();
  REQUIRE(Summary(records) == "-1 | a");
  CHECK(records[1].entries[0].request.shape == std::vector<int64_t>{7});
  CHECK(records[1].entries[0].slot == 2);
}

TEST_CASE("an evicted description is kept for as long as one member may not have heard of it") {
  Coordinator coordinator({0, 1}, Capacity(1));
  RunAll(&coordinator, 2, Allreduce("a"));
  RunAll(&coordinator, 2, Allreduce("b"));  // record 2 evicts slot 0
  coordinator.OnReady(0, 1, 3);
  coordinator.OnReady(1, 1, 1);  // has applied neither the eviction nor the new slot
  coordinator.Decide();
  RunAll(&coordinator, 2, Allreduce("c"));  // evicts slot 1, and so triggers the cleanup
  coordinator.OnReady(1, 0, 1);
  CHECK(coordinator.Decide().empty());
  CHECK(coordinator.Pending()[0].name == "a");
  CHECK(Summary(Run(&coordinator, {Allreduce("a")})) == "-2 | a");
  coordinator.OnReady(0, 3, 8);
  coordinator.OnReady(1, 3, 8);
  coordinator.Decide();
  RunAll(&coordinator, 2, Allreduce("d"));
  coordinator.OnReady(1, 0, 1);
  const auto records = coordinator.Decide();
  REQUIRE(records.size() == 1);
  CHECK(records[0].error.code == Code::kFailed);
}

TEST_CASE("a slot that never was is reported with the rank that named it") {
  Coordinator coordinator({0, 5}, {});
  coordinator.OnReady(1, 77, 0);
  const auto records = coordinator.Decide();
  REQUIRE(records.size() == 1);
  CHECK(records[0].kind == RecordKind::kError);
  CHECK(records[0].names.empty());
  CHECK(records[0].error.code == Code::kFailed);
  CHECK(records[0].error.text == "Protocol error: rank 5 reported a tensor by cache slot 77, which no tensor has.");
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("x"))) == "x");
}

TEST_CASE("names that never come back do not pile up") {
  TensorTable table(1, 2);
  std::vector<uint32_t> evicted;
  for (uint64_t i = 0; i < 70000; ++i) {
    Tensor& tensor = table.AwaitInFull("noname." + std::to_string(i));
    tensor.reports.Add(0, Allreduce(tensor.name));
    table.Remember(&tensor, i, &evicted);
    table.Release(&tensor);
  }
  CHECK(evicted.size() == 70000 - 2);
  CHECK(table.FindForgotten(0) == nullptr);
  CHECK(table.FindForgotten(69997) != nullptr);
  CHECK(table.FindSlot(69999) != nullptr);
  CHECK(table.Find("noname.0") == nullptr);
}

}  // namespace
}  // namespace hvd
