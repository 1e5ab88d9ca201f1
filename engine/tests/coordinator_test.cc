// SPDX-License-Identifier: Apache-2.0
// When tensors become ready, in which batches they leave and how they fail; groups, process sets and departures.
#include "agreement/coordinator.h"

#include <doctest/doctest.h>

#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using testing::Allreduce;
using testing::Grouped;
using testing::Make;
using testing::ProcessSet;
using testing::Run;
using testing::RunAll;
using testing::Summary;

TEST_CASE("nothing heard, nothing decided") {
  Coordinator coordinator({0, 1}, {});
  CHECK(coordinator.Decide().empty());
  CHECK(coordinator.Pending().empty());
}

TEST_CASE("a world of one is ready at once") {
  Coordinator coordinator({0}, {});
  CHECK(Summary(RunAll(&coordinator, 1, Allreduce("x"))) == "x");
}

TEST_CASE("a tensor waits for its last member and the stall inspector sees who is missing") {
  Coordinator coordinator({1, 4, 9}, {});
  coordinator.OnRequest(1, Allreduce("x"));
  coordinator.OnRequest(1, Allreduce("y"));
  coordinator.OnRequest(2, Allreduce("y"));
  CHECK(coordinator.Decide().empty());
  const auto pending = coordinator.Pending();
  REQUIRE(pending.size() == 2);
  CHECK(pending[0].name == "x");
  CHECK(pending[0].missing == std::vector<int>{1, 9});
  CHECK(pending[1].name == "y");
  CHECK(pending[1].missing == std::vector<int>{1});
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.OnRequest(2, Allreduce("x"));
  CHECK(Summary(coordinator.Decide()) == "x");
  CHECK(coordinator.Pending().size() == 1);
  CHECK(coordinator.Decide().empty());
}

TEST_CASE("a second report by the same member changes nothing") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.OnRequest(0, Allreduce("x", {99}));
  CHECK(coordinator.Decide().empty());
  coordinator.OnRequest(1, Allreduce("x"));
  coordinator.OnRequest(1, Allreduce("x", {99}));
  const auto records = coordinator.Decide();
  CHECK(Summary(records) == "x");
  CHECK(records[0].entries[0].request.shape == std::vector<int64_t>{2});
  CHECK(coordinator.Pending().empty());
}

TEST_CASE("batches leave in the order in which tensors became ready everywhere, numbered from 1") {
  CoordinatorOptions options;
  options.fusion_threshold = 0;
  Coordinator coordinator({0, 1}, options);
  for (const char* name : {"a", "b", "c"}) coordinator.OnRequest(0, Allreduce(name));
  for (const char* name : {"c", "a"}) coordinator.OnRequest(1, Allreduce(name));
  auto records = coordinator.Decide();
  CHECK(Summary(records) == "c | a");
  CHECK(records[0].sequence == 1);
  CHECK(records[1].sequence == 2);
  coordinator.OnRequest(1, Allreduce("b"));
  records = coordinator.Decide();
  CHECK(Summary(records) == "b");
  CHECK(records[0].sequence == 3);
}

TEST_CASE("an agreed entry carries what members need to run it") {
  Coordinator coordinator({0, 1, 2}, {});
  const auto records = Run(&coordinator, {Make(OpKind::kAllgather, "g", {3, 2}), Make(OpKind::kAllgather, "g", {0, 2}),
                                          Make(OpKind::kAllgather, "g", {5, 2})});
  REQUIRE(records.size() == 1);
  const Entry& entry = records[0].entries[0];
  CHECK_FALSE(entry.cached);
  CHECK(entry.request == Make(OpKind::kAllgather, "g", {3, 2}));
  CHECK(entry.sizes == std::vector<int64_t>{3, 0, 5});
}

TEST_CASE("ready tensors are fused over incompatible ones, up to the present threshold") {
  CoordinatorOptions options;
  options.fusion_threshold = 16;  // room for two tensors of two float32
  Coordinator coordinator({0, 1}, options);
  Request wide = Allreduce("w");
  wide.dtype = DType::kFloat64;
  const std::vector<Request> requests = {Allreduce("a"), wide, Allreduce("b"), Allreduce("c"), Allreduce("big", {9})};
  const auto run = [&] {
    for (int member = 0; member < 2; ++member) {
      for (const Request& request : requests) coordinator.OnRequest(member, request);
    }
    return coordinator.Decide();
  };
  CHECK(Summary(run()) == "a b | w | c | big");
  coordinator.Tune({1000, 0, 0});
  auto records = run();
  CHECK(records[0].kind == RecordKind::kTune);
  CHECK(records[0].tuning.fusion_threshold == 1000);
  // The tuning record, and the eviction of the former descriptions.
  records.erase(records.begin(), records.begin() + 2);
  CHECK(Summary(records) == "a b c big | w");
  coordinator.Tune({0, 0, 0});
  records = run();
  records.erase(records.begin(), records.begin() + 2);
  CHECK(Summary(records) == "a | w | b | c | big");
}

TEST_CASE("tensors at places of a device fill no slots: all of them are one batch, until a member has joined") {
  CoordinatorOptions options;
  options.fusion_threshold = 16;
  Coordinator coordinator({0, 1}, options);
  const auto send = [&](int member, const char* round) {
    for (int64_t i = 0; i < 5; ++i) {
      Request request = Allreduce(std::string(round) + static_cast<char>('a' + i), {2});
      request.device = 0;
      request.place = 16 * i;
      coordinator.OnRequest(member, request);
    }
  };
  for (int member : {0, 1}) send(member, "x");
  CHECK(Summary(coordinator.Decide()) == "xa xb xc xd xe");
  coordinator.OnRequest(1, testing::Join());
  send(0, "y");
  CHECK(Summary(coordinator.Decide()) == "ya yb | yc yd | ye");
}

TEST_CASE("broadcasts from different roots never share a batch, Adasum does") {
  Coordinator coordinator({0, 1}, {});
  for (int member = 0; member < 2; ++member) {
    for (int i = 0; i < 4; ++i) {
      Request request = Make(OpKind::kBroadcast, "b" + std::to_string(i));
      request.root = i % 2;
      coordinator.OnRequest(member, request);
      request = Allreduce("a" + std::to_string(i));
      request.op = i % 2 ? ReduceOp::kAdasum : ReduceOp::kSum;
      coordinator.OnRequest(member, request);
    }
  }
  CHECK(Summary(coordinator.Decide()) == "b0 b2 | a0 a2 | b1 b3 | a1 a3");
}

TEST_CASE("a mismatch fails the tensor alone, for everyone, and its name can be used again") {
  Coordinator coordinator({3, 7}, {});
  coordinator.OnRequest(0, Allreduce("good"));
  coordinator.OnRequest(1, Allreduce("good"));
  auto records = Run(&coordinator, {Allreduce("bad", {2}), Allreduce("bad", {3})});
  CHECK(Summary(records) == "E:bad | good");
  CHECK(records[0].kind == RecordKind::kError);
  CHECK(records[0].error.code == Code::kMismatch);
  CHECK(records[0].error.text.find("[2] on rank 3 but [3] on rank 7") != std::string::npos);
  CHECK(records[0].sequence == 1);
  CHECK(records[1].sequence == 2);
  CHECK(Summary(RunAll(&coordinator, 2, Allreduce("bad"))) == "bad");
}

TEST_CASE("a barrier compares nothing and is never fused") {
  Coordinator coordinator({0, 1}, {});
  for (int member = 0; member < 2; ++member) {
    Request barrier = Make(OpKind::kBarrier, "p", {member});
    barrier.dtype = member ? DType::kBool : DType::kInt8;
    coordinator.OnRequest(member, barrier);
    barrier.name = "q";
    coordinator.OnRequest(member, barrier);
  }
  const auto records = coordinator.Decide();
  CHECK(Summary(records) == "p | q");
  CHECK(records[0].entries[0].slot == kNoSlot);
}

TEST_CASE("a group starts only when all of it is ready everywhere") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Grouped(Allreduce("g1"), "g", 2));
  coordinator.OnRequest(1, Grouped(Allreduce("g1"), "g", 2));
  coordinator.OnRequest(0, Grouped(Allreduce("g2"), "g", 2));
  CHECK(coordinator.Decide().empty());
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.OnRequest(1, Allreduce("x"));
  CHECK(Summary(coordinator.Decide()) == "x");
  const auto pending = coordinator.Pending();
  REQUIRE(pending.size() == 1);
  CHECK(pending[0].name == "g2");
  coordinator.OnRequest(1, Grouped(Allreduce("g2"), "g", 2));
  CHECK(Summary(coordinator.Decide()) == "g1 g2");
}

TEST_CASE("a group keeps to itself when group fusion is disabled") {
  for (bool disabled : {false, true}) {
    CoordinatorOptions options;
    options.disable_group_fusion = disabled;
    Coordinator coordinator({0}, options);
    for (const char* name : {"a", "b"}) coordinator.OnRequest(0, Allreduce(name));
    for (const char* name : {"g1", "g2"}) coordinator.OnRequest(0, Grouped(Allreduce(name), "g", 2));
    for (const char* name : {"h1", "h2"}) coordinator.OnRequest(0, Grouped(Allreduce(name), "h", 2));
    CHECK(Summary(coordinator.Decide()) == (disabled ? "a b | g1 g2 | h1 h2" : "a b g1 g2 h1 h2"));
  }
}

TEST_CASE("a group fails as a whole") {
  Coordinator coordinator({0, 1}, {});
  for (int member = 0; member < 2; ++member) {
    coordinator.OnRequest(member, Grouped(Allreduce("g1"), "g", 3));
    coordinator.OnRequest(member, Grouped(Allreduce("g2", {2 + member}), "g", 3));
    coordinator.OnRequest(member, Allreduce("x"));
    coordinator.OnRequest(member, Grouped(Allreduce("g3"), "g", 3));
  }
  auto records = coordinator.Decide();
  CHECK(Summary(records) == "E:g1 E:g2 E:g3 | x");
  CHECK(records[0].error.text.find("'g2'") != std::string::npos);
  CHECK(coordinator.Pending().empty());
  for (int member = 0; member < 2; ++member) {
    for (const char* name : {"g1", "g2", "g3"}) coordinator.OnRequest(member, Grouped(Allreduce(name), "g", 3));
  }
  CHECK(Summary(coordinator.Decide()) == "g1 g2 g3");
}

TEST_CASE("members that group differently all hear of it") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Grouped(Allreduce("a"), "g", 2));
  coordinator.OnRequest(0, Grouped(Allreduce("b"), "g", 2));
  coordinator.OnRequest(1, Grouped(Allreduce("c"), "h", 2));
  coordinator.OnRequest(1, Grouped(Allreduce("b"), "h", 2));
  auto records = coordinator.Decide();
  CHECK(Summary(records) == "E:a E:b E:c");
  CHECK(records[0].error.text.substr(0, 18) == "Mismatched groups:");
  CHECK(coordinator.Pending().empty());

  for (int member = 0; member < 2; ++member) coordinator.OnRequest(member, Grouped(Allreduce("a"), "g", 3));
  for (int member = 0; member < 2; ++member) coordinator.OnRequest(member, Grouped(Allreduce("b"), "g", 2));
  CHECK(Summary(coordinator.Decide()) == "E:a E:b");
}

TEST_CASE("process sets get the smallest free id and an epoch of their own") {
  Coordinator coordinator({0, 1}, {});
  const auto add = [&](const std::string& name) {
    const auto records = Run(&coordinator, {ProcessSet(OpKind::kAddProcessSet, name, {100, 0, 1}),
                                            ProcessSet(OpKind::kAddProcessSet, name, {200, 0, 1})});
    REQUIRE(records.size() == 1);
    return records[0].entries.at(0).sizes;
  };
  const auto remove = [&](int64_t id) {
    return RunAll(&coordinator, 2, ProcessSet(OpKind::kRemoveProcessSet, "remove", {id}));
  };
  using Sizes = std::vector<int64_t>;
  CHECK(add("p") == Sizes{1, 1, 100, 200});
  CHECK(add("p") == Sizes{2, 2, 100, 200});
  CHECK(Summary(remove(1)) == "remove");
  CHECK(add("q") == Sizes{1, 3, 100, 200});
  CHECK(add("q") == Sizes{3, 4, 100, 200});
  for (int64_t unknown : {-1, 0, 4, 1000}) CHECK(Summary(remove(unknown)) == "E:remove");
  CHECK(Summary(remove(2)) == "remove");
  CHECK(Summary(remove(2)) == "E:remove");
}

TEST_CASE("members that add different process sets hear of it and no id is lost") {
  Coordinator coordinator({0, 1}, {});
  const auto records = Run(&coordinator, {ProcessSet(OpKind::kAddProcessSet, "p", {100, 0, 1}),
                                          ProcessSet(OpKind::kAddProcessSet, "p", {200, 0})});
  CHECK(Summary(records) == "E:p");
  CHECK(records[0].error.text.substr(0, 22) == "Mismatched process set");
  const auto again = RunAll(&coordinator, 2, ProcessSet(OpKind::kAddProcessSet, "p", {0, 0, 1}));
  CHECK(again[0].entries[0].sizes == std::vector<int64_t>{1, 1, 0, 0});
}

TEST_CASE("a departure fails what waits and what comes later, by name") {
  Coordinator coordinator({0, 1, 3}, {});
  RunAll(&coordinator, 3, Allreduce("cached"));
  coordinator.OnRequest(0, Allreduce("grad.0"));
  coordinator.OnReady(1, 0, 1);
  for (int member = 0; member < 3; ++member) coordinator.OnRequest(member, Allreduce("undecided"));
  coordinator.OnRequest(0, Grouped(Allreduce("g1"), "g", 2));
  coordinator.OnRequest(0, Grouped(Allreduce("g2"), "g", 2));
  coordinator.OnDeparture(2);
  coordinator.OnDeparture(1);  // the error names the member that left first
  auto records = coordinator.Decide();
  CHECK(Summary(records) == "E:grad.0 | E:cached | E:undecided | E:g1 E:g2");
  CHECK(records[0].error.code == Code::kFailed);
  CHECK(records[0].error.text ==
        "Horovod has been shut down. Rank 3 finished while rank 0 still calls 'grad.0'. Let all ranks make this call, "
        "outside of conditions such as `if hvd.rank() == 0`; if ranks only have different numbers of batches, use "
        "drop_last=True or hvd.join(). If rank 3 failed instead, its own error says why.");
  CHECK(coordinator.Pending().empty());
  CHECK(coordinator.Decide().empty());
  coordinator.OnRequest(0, Allreduce("later"));
  coordinator.OnReady(0, 0, 1);
  coordinator.OnRequest(0, testing::Join());
  CHECK(Summary(coordinator.Decide()) == "E:later | E:cached | E:join");
}

TEST_CASE("who left after it had sent its part to all is not needed for that any more") {
  Coordinator coordinator({0, 1, 3}, {});
  RunAll(&coordinator, 3, Allreduce("a"));
  RunAll(&coordinator, 3, Allreduce("b"));
  for (uint32_t slot : {0, 1}) {
    coordinator.OnReady(0, slot, 2, true);
    coordinator.OnReady(2, slot, 2, true);
  }
  coordinator.OnDeparture(2);  // it has received member 1's part before the leader has
  CHECK(coordinator.Decide().empty());
  CHECK(coordinator.Pending().size() == 2);
  SUBCASE("then all have it") {
    coordinator.OnReady(1, 0, 2, true);
    CHECK(coordinator.Decide().empty());
    CHECK(coordinator.Pending().size() == 1);
    coordinator.OnReady(1, 0, 2, true);  // the next round of this tensor
    CHECK(Summary(coordinator.Decide()) == "E:a");
  }
  SUBCASE("unless we have to decide") {
    coordinator.OnReady(1, 0, 2);
    CHECK(Summary(coordinator.Decide()) == "E:a");
  }
  SUBCASE("unless another one leaves that has not sent any") {
    coordinator.OnDeparture(1);
    const auto records = coordinator.Decide();
    CHECK(Summary(records) == "E:a | E:b");
    CHECK(records[0].error.text.find("Rank 1 finished while ranks 0, 3 still call 'a'") != std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
