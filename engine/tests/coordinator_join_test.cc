// SPDX-License-Identifier: Apache-2.0
// Members that ran out of data: which collectives continue without them, which fail, and how a join ends.
#include <doctest/doctest.h>

#include "agreement/coordinator.h"
#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using testing::Allreduce;
using testing::Alltoall;
using testing::Grouped;
using testing::Join;
using testing::Make;
using testing::ProcessSet;
using testing::Run;
using testing::RunAll;
using testing::Summary;

TEST_CASE("a joined member is ready for every allreduce, whatever the operation") {
  for (ReduceOp op :
       {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kAdasum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    Coordinator coordinator({0, 1, 2}, {});
    coordinator.OnRequest(1, Join());
    CHECK(coordinator.Decide().empty());
    Request request = Allreduce("x", {5});
    request.op = op;
    coordinator.OnRequest(0, request);
    CHECK(coordinator.Decide().empty());
    CHECK(coordinator.Pending()[0].missing == std::vector<int>{2});
    coordinator.OnRequest(2, request);
    const auto records = coordinator.Decide();
    REQUIRE(Summary(records) == "x");
    CHECK(records[0].entries[0].request == request);
  }
}

TEST_CASE("joining releases what only waited for the member") {
  Coordinator coordinator({0, 1, 2}, {});
  for (int member : {0, 2}) coordinator.OnRequest(member, Allreduce("released"));
  for (int member : {0, 2}) coordinator.OnRequest(member, Grouped(Allreduce("g1"), "g", 2));
  for (int member : {0, 2}) coordinator.OnRequest(member, Grouped(Allreduce("g2"), "g", 2));
  coordinator.OnRequest(0, Allreduce("waits"));
  coordinator.OnRequest(1, Allreduce("own"));  // submitted before this member joined, so its data counts
  coordinator.OnRequest(1, Join());
  CHECK(Summary(coordinator.Decide()) == "released g1 g2");
  coordinator.OnRequest(2, Allreduce("waits"));
  coordinator.OnRequest(0, Allreduce("own"));
  CHECK(Summary(coordinator.Decide()) == "waits");
  coordinator.OnRequest(2, Allreduce("own"));
  CHECK(Summary(coordinator.Decide()) == "own");
}

TEST_CASE("other collectives fail while someone has joined, before and after their reports") {
  const Request others[] = {
      Make(OpKind::kAllgather, "x"), Make(OpKind::kBroadcast, "x"),
      Alltoall("x", {1, 1, 1}),      Make(OpKind::kReducescatter, "x"),
      Make(OpKind::kBarrier, "x"),   ProcessSet(OpKind::kAddProcessSet, "x", {0, 0, 1}),
  };
  for (const Request& request : others) {
    Coordinator coordinator({0, 2, 5}, {});
    coordinator.OnRequest(0, request);
    coordinator.OnRequest(1, Join());
    auto records = coordinator.Decide();
    REQUIRE(Summary(records) == "E:x");
    CHECK(records[0].error.code == Code::kMismatch);
    CHECK(records[0].error.text.find(std::string(NameOf(request.kind)) +
                                     " of 'x' is not supported while rank 2 has joined") == 0);
    CHECK(coordinator.Pending().empty());
    coordinator.OnRequest(2, request);
    CHECK(Summary(coordinator.Decide()) == "E:x");
    coordinator.OnRequest(0, Join());
    coordinator.OnRequest(2, Join());
    coordinator.Decide();
    CHECK(Summary(RunAll(&coordinator, 3, request)) == "x");
  }
}

TEST_CASE("what everyone had submitted before the join still runs") {
  Coordinator coordinator({0, 1}, {});
  for (int member = 0; member < 2; ++member) coordinator.OnRequest(member, Make(OpKind::kAllgather, "x"));
  coordinator.OnRequest(0, Join());
  CHECK(Summary(coordinator.Decide()) == "x");
}

TEST_CASE("a group of another collective fails as a whole") {
  Coordinator coordinator({0, 1, 2}, {});
  for (int member = 0; member < 3; ++member) {
    coordinator.OnRequest(member, Grouped(Make(OpKind::kAllgather, "g1"), "g", 2));
  }
  coordinator.OnRequest(0, Grouped(Make(OpKind::kAllgather, "g2"), "g", 2));
  coordinator.OnRequest(2, Join());
  CHECK(Summary(coordinator.Decide()) == "E:g1 E:g2");
  CHECK(coordinator.Pending().empty());
  coordinator.OnRequest(0, Join());
  coordinator.OnRequest(1, Join());
  CHECK(Summary(coordinator.Decide()) == "join");
  RunAll(&coordinator, 3, Grouped(Make(OpKind::kAllgather, "g1"), "g", 2));
  CHECK(Summary(RunAll(&coordinator, 3, Grouped(Make(OpKind::kAllgather, "g2"), "g", 2))) == "g1 g2");
}

TEST_CASE("when all have joined, everyone learns who was last and the next join starts afresh") {
  Coordinator coordinator({2, 4, 6}, {});
  for (const auto& order : {std::vector<int>{0, 2, 1}, std::vector<int>{2, 1, 0}}) {
    for (int member : order) {
      CHECK(coordinator.Decide().empty());
      coordinator.OnRequest(member, Join());
      coordinator.OnRequest(member, Join());  // a second report, which does not count
    }
    const auto records = coordinator.Decide();
    REQUIRE(Summary(records) == "join");
    CHECK(records[0].entries[0].request.kind == OpKind::kJoin);
    CHECK(records[0].entries[0].sizes == std::vector<int64_t>{2 + 2 * order.back()});
    CHECK(coordinator.Decide().empty());
    coordinator.OnRequest(0, Allreduce("x"));
    coordinator.OnRequest(1, Allreduce("x"));
    CHECK(coordinator.Decide().empty());  // no member is joined any more
    coordinator.OnRequest(2, Allreduce("x"));
    coordinator.Decide();
  }
}

TEST_CASE("allreduces that the last join releases come before the end of the join") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.OnRequest(0, Join());
  coordinator.OnRequest(1, Join());
  CHECK(Summary(coordinator.Decide()) == "x | join");
}

TEST_CASE("joined members know slots from the log: what was cached before or meanwhile is sent by slot") {
  Coordinator coordinator({0, 1, 2}, {});
  RunAll(&coordinator, 3, Allreduce("before"));
  coordinator.OnRequest(2, Join());
  coordinator.OnReady(0, 0, 1);
  coordinator.OnReady(1, 0, 1);
  CHECK(Summary(coordinator.Decide()) == "#0");
  coordinator.OnRequest(0, Allreduce("meanwhile"));
  coordinator.OnRequest(1, Allreduce("meanwhile"));
  CHECK(Summary(coordinator.Decide()) == "meanwhile");
  coordinator.OnReady(0, 1, 3);
  coordinator.OnReady(1, 1, 3);
  CHECK(Summary(coordinator.Decide()) == "#1");
  coordinator.OnRequest(0, Join());
  coordinator.OnRequest(1, Join());
  coordinator.Decide();
  for (int member = 0; member < 3; ++member) coordinator.OnReady(member, 1, 5);
  CHECK(Summary(coordinator.Decide()) == "#1");
  // The new description of the member that had joined is compared with the description in the cache.
  coordinator.OnReady(2, 1, 6);
  coordinator.OnRequest(0, Allreduce("meanwhile", {9}));
  coordinator.OnRequest(1, Allreduce("meanwhile", {9}));
  const auto records = coordinator.Decide();
  REQUIRE(Summary(records) == "E:meanwhile");
  CHECK(records[0].error.text.find("[9] on rank 0 but [2] on rank 2") != std::string::npos);
}

TEST_CASE("cached collectives other than allreduce fail too while someone has joined") {
  Coordinator coordinator({0, 1}, {});
  RunAll(&coordinator, 2, Make(OpKind::kAllgather, "x"));
  coordinator.OnReady(0, 0, 1);
  coordinator.OnRequest(1, Join());
  CHECK(Summary(coordinator.Decide()) == "E:x");
  coordinator.OnReady(0, 0, 1);
  CHECK(Summary(coordinator.Decide()) == "E:x");
  coordinator.OnRequest(0, Join());
  CHECK(Summary(coordinator.Decide()) == "join");
  coordinator.OnReady(0, 0, 4);
  coordinator.OnReady(1, 0, 4);
  CHECK(Summary(coordinator.Decide()) == "#0");
}

TEST_CASE("who joins after it has sent its part to all does not fail what the others still wait for") {
  Coordinator coordinator({0, 1, 2}, {});
  RunAll(&coordinator, 3, Make(OpKind::kAllgather, "x"));
  for (int member : {0, 1}) coordinator.OnReady(member, 0, 1, true);
  coordinator.OnRequest(1, Join());  // it has received member 2's part before the leader has
  CHECK(coordinator.Decide().empty());
  SUBCASE("then all have it") {
    coordinator.OnReady(2, 0, 1, true);
    CHECK(coordinator.Decide().empty());
    CHECK(coordinator.Pending().empty());
    coordinator.OnReady(0, 0, 1, true);  // the next round, which needs the member that has joined
    CHECK(Summary(coordinator.Decide()) == "E:x");
  }
  SUBCASE("unless we have to decide") {
    coordinator.OnReady(2, 0, 1);
    CHECK(Summary(coordinator.Decide()) == "E:x");
  }
}

TEST_CASE("a departure ends a join") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Join());
  coordinator.OnDeparture(1);
  const auto records = coordinator.Decide();
  REQUIRE(Summary(records) == "E:join");
  CHECK(records[0].error.code == Code::kFailed);
  CHECK(coordinator.Decide().empty());
}

// Return one allreduce for each member, with member j's tensors on GPU j + `second`.
std::vector<Request> OnTheirGpus(const std::string& name, int members, int second = 0) {
  std::vector<Request> requests;
  for (int member = 0; member < members; ++member) {
    requests.push_back(Allreduce(name));
    requests.back().device = member + second;
  }
  return requests;
}

TEST_CASE("what the members' GPUs are called does not depend on who has joined") {
  Coordinator coordinator({0, 1, 2}, {});
  for (const int second : {0, 4}) {
    const auto records = Run(&coordinator, OnTheirGpus("x.noname." + std::to_string(second), 3, second));
    CHECK(records[0].entries[0].request.device == second);
  }
  coordinator.OnRequest(0, Join());
  coordinator.OnRequest(2, Join());
  for (const int second : {4, 0}) {
    Request request = Allreduce("y.noname." + std::to_string(second));
    request.device = 1 + second;
    request.place = 64;
    coordinator.OnRequest(1, request);
    const auto records = coordinator.Decide();
    REQUIRE(Summary(records) == request.name);
    CHECK(records[0].entries[0].request.device == second);
    CHECK_FALSE(records[0].entries[0].direct);
  }
}

TEST_CASE("where members never had tensors together, those that speak name their GPU") {
  Coordinator coordinator({0, 1}, {});
  coordinator.OnRequest(0, Join());
  Request request = Allreduce("x");
  request.device = 1;
  coordinator.OnRequest(1, request);
  const auto records = coordinator.Decide();
  CHECK(records[0].entries[0].request.device == 1);
}

TEST_CASE("a name that was first heard while the first member had joined keeps its GPU in the cache") {
  Coordinator coordinator({0, 1}, {});
  Run(&coordinator, OnTheirGpus("before", 2));
  coordinator.OnRequest(0, Join());
  coordinator.OnRequest(1, OnTheirGpus("x", 2)[1]);
  const auto records = coordinator.Decide();
  const Entry& learned = records[0].entries[0];
  CHECK(learned.request.device == 0);
  coordinator.OnRequest(1, Join());
  coordinator.Decide();
  // The first member finds its own description in the cache. The other one reports another device than before.
  coordinator.OnReady(0, learned.slot, records[0].sequence, false);
  coordinator.OnRequest(1, OnTheirGpus("x", 2, 3)[1]);
  CHECK(coordinator.Decide().back().entries[0].request.device == 0);
}

}  // namespace
}  // namespace hvd
