// SPDX-License-Identifier: Apache-2.0
// Ranks that wait for each other: which ranks are stuck, when that is certain, and which text users get.
#include "agreement/deadlocks.h"

#include <doctest/doctest.h>

#include "agreement/spoken.h"
#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using std::chrono::seconds;

const WatchTime kStart = WatchTime() + std::chrono::hours(1);
constexpr seconds kPatience{20};
// Operations that each rank has announced in the global set, unless a test says otherwise.
constexpr uint64_t kCount = 5;

// Return the report of a rank whose only thread waits in allreduce `name` for the ranks in `missing`.
Block Waits(int rank, const std::string& name, const std::vector<int>& missing) {
  static uint64_t number = 0;
  Block block;
  block.rank = rank;
  block.thread = 1;
  block.number = ++number;
  block.alone = true;
  block.name = name;
  block.what = "allreduce '" + name + "' (train.py:" + std::to_string(10 + rank) + ")";
  block.announced = {{0, 0, kCount}};
  for (int one : missing) block.missing.push_back({one, kCount});
  return block;
}

// Return deadlocks as text, "certain 0 1" or "seems 0 1" for each; "" if there are none.
std::string Summary(const std::vector<Deadlock>& found) {
  std::string text;
  for (const Deadlock& one : found) {
    text += std::string(text.empty() ? "" : "; ") + (one.certain ? "certain" : "seems");
    for (const Deadlock::Stuck& stuck : one.ranks) text += " " + std::to_string(stuck.rank);
  }
  return text;
}

std::string FoundIn(const std::vector<Block>& blocks) {
  Deadlocks deadlocks{seconds(0), kPatience};
  for (const Block& block : blocks) deadlocks.Hear(block);
  return Summary(deadlocks.Find(kStart));
}

}  // namespace

TEST_CASE("deadlocks: who is stuck") {
  struct Row {
    const char* meaning;
    std::vector<Block> blocks;
    const char* found;
  };
  const Row rows[] = {
      {"two ranks wait for each other", {Waits(0, "x", {1}), Waits(1, "y", {0})}, "certain 0 1"},
      {"nobody waits", {}, ""},
      {"the other one computes", {Waits(0, "x", {1})}, ""},
      {"they wait for one that computes", {Waits(0, "x", {2}), Waits(1, "x", {2})}, ""},
      {"a circle of three", {Waits(0, "x", {1}), Waits(1, "y", {2}), Waits(2, "z", {0})}, "certain 0 1 2"},
      {"a chain that ends at one that computes", {Waits(0, "x", {1}), Waits(1, "y", {2}), Waits(3, "z", {0})}, ""},
      {"a chain that ends in a circle", {Waits(0, "x", {1}), Waits(1, "y", {2}), Waits(2, "z", {1})}, "certain 0 1 2"},
      {"one missing rank that is stuck is enough", {Waits(0, "x", {1, 2}), Waits(1, "y", {0, 2})}, "certain 0 1"},
      {"three against one",
       {Waits(0, "x", {3}), Waits(1, "x", {3}), Waits(2, "x", {3}), Waits(3, "y", {0, 1, 2})},
       "certain 0 1 2 3"},
      {"two circles",
       {Waits(0, "x", {1}), Waits(1, "y", {0}), Waits(2, "x", {3}), Waits(3, "y", {2})},
       "certain 0 1 2 3"},
  };
  for (const Row& row : rows) CHECK_MESSAGE(FoundIn(row.blocks) == row.found, row.meaning);
}

TEST_CASE("deadlocks: it is certain only where nothing else could submit what is missing") {
  Block other_threads = Waits(1, "y", {0});
  other_threads.alone = false;
  CHECK(FoundIn({Waits(0, "x", {1}), other_threads}) == "seems 0 1");

  Block second = Waits(1, "z", {0});
  second.thread = 2;
  second.number += 100;
  CHECK(FoundIn({Waits(0, "x", {1}), Waits(1, "y", {0}), second}) == "seems 0 1");
  second.missing = {{2, kCount}};  // rank 2 has reported nothing, so that thread may still continue
  CHECK(FoundIn({Waits(0, "x", {1}), Waits(1, "y", {0}), second}) == "");

  // The leader had not received all of rank 1's announcements when it missed rank 1.
  Block early = Waits(0, "x", {1});
  early.missing[0].heard = kCount - 1;
  CHECK(FoundIn({early, Waits(1, "y", {0})}) == "seems 0 1");
  // Rank 1 does not list the set, so it joined or left the set meanwhile.
  Block elsewhere = Waits(0, "x", {1});
  elsewhere.set = 3;
  elsewhere.epoch = 7;
  CHECK(FoundIn({elsewhere, Waits(1, "y", {0})}) == "seems 0 1");
  Block member = Waits(1, "y", {0});
  member.announced.push_back({3, 7, kCount});
  CHECK(FoundIn({elsewhere, member}) == "certain 0 1");
  member.announced.back().epoch = 6;  // rank 1 lists an earlier set with this id
  member.number += 100;
  CHECK(FoundIn({elsewhere, member}) == "seems 0 1");
}

TEST_CASE("deadlocks: the latest word of a rank counts, and one that left waits for nobody") {
  Deadlocks deadlocks{seconds(0), kPatience};
  Block late = Waits(1, "y", {0});
  Block over = late;
  over.number += 1;
  over.over = true;
  deadlocks.Hear(Waits(0, "x", {1}));
  deadlocks.Hear(over);
  deadlocks.Hear(late);  // outdated, because a newer report has arrived before it
  CHECK(Summary(deadlocks.Find(kStart)) == "");
  deadlocks.Hear(Waits(1, "y", {0}));
  deadlocks.Forget(0);
  CHECK(Summary(deadlocks.Find(kStart)) == "");
  deadlocks.Hear(Waits(0, "x", {1}));
  CHECK(Summary(deadlocks.Find(kStart)) == "certain 0 1");
  CHECK(deadlocks.empty());  // a deadlock is reported once
}

TEST_CASE("deadlocks: told when it has lasted, so that those who come late are named too") {
  Deadlocks deadlocks{seconds(1), kPatience};
  deadlocks.Hear(Waits(0, "x", {2, 3}));
  deadlocks.Hear(Waits(2, "y", {0, 1}));
  CHECK(Summary(deadlocks.Find(kStart)) == "");
  deadlocks.Hear(Waits(1, "x", {2, 3}));
  deadlocks.Hear(Waits(3, "y", {0, 1}));
  CHECK(Summary(deadlocks.Find(kStart + std::chrono::milliseconds(999))) == "");
  CHECK(Summary(deadlocks.Find(kStart + seconds(1))) == "certain 0 1 2 3");
}

TEST_CASE("deadlocks: a warning is given once") {
  Deadlocks deadlocks{seconds(0), kPatience};
  for (int time = 0; time < 3; ++time) {
    for (Block block : {Waits(0, "x", {1}), Waits(1, "y", {0})}) {
      block.alone = false;
      deadlocks.Hear(block);
    }
    CHECK(Summary(deadlocks.Find(kStart + seconds(time))) == (time ? "" : "seems 0 1"));
  }
}

TEST_CASE("deadlocks: threads that have never called are given time, others for ever") {
  const auto with = [](Block block, bool idle) {
    block.alone = false;
    block.others_are_idle = idle;
    block.others = idle ? "'logger' (log.py:" + std::to_string(block.rank) + ")" : "";
    return block;
  };
  struct Row {
    const char* meaning;
    Block first, second;
    const char* found_late;
  };
  const Row rows[] = {
      {"idle ones on both ranks", with(Waits(0, "x", {1}), true), with(Waits(1, "y", {0}), true), "certain 0 1"},
      {"an idle one on one rank", Waits(0, "x", {1}), with(Waits(1, "y", {0}), true), "certain 0 1"},
      {"one that has called", with(Waits(0, "x", {1}), true), with(Waits(1, "y", {0}), false), ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.meaning);
    Deadlocks deadlocks{seconds(0), kPatience};
    deadlocks.Hear(row.first);
    deadlocks.Hear(row.second);
    CHECK(Summary(deadlocks.Find(kStart)) == "seems 0 1");
    CHECK(Summary(deadlocks.Find(kStart + kPatience - seconds(1))) == "");
    for (Block again : {row.first, row.second}) {  // the ranks repeat their reports without any change
      again.number += 1000;
      deadlocks.Hear(again);
    }
    CHECK(Summary(deadlocks.Find(kStart + kPatience)) == row.found_late);
    CHECK(Summary(deadlocks.Find(kStart + 2 * kPatience)) == "");
  }
}

TEST_CASE("deadlocks: the time that idle threads have begins again when anything moves") {
  Deadlocks deadlocks{seconds(0), kPatience};
  const auto hear = [&](Block block) {
    block.alone = false;
    block.others_are_idle = true;
    block.others = "'logger'";
    deadlocks.Hear(block);
  };
  hear(Waits(0, "x", {1}));
  hear(Waits(1, "y", {0}));
  CHECK(Summary(deadlocks.Find(kStart)) == "seems 0 1");
  Block moved = Waits(1, "y", {0});
  // The rank has submitted something that the leader of the other rank's set may not know yet.
  moved.announced[0].count = kCount + 1;
  hear(moved);
  // The new warning no longer announces that they will fail.
  CHECK(Summary(deadlocks.Find(kStart + kPatience)) == "seems 0 1");
  Block known = Waits(0, "x", {1});
  known.missing[0].heard = kCount + 1;
  hear(known);
  CHECK(Summary(deadlocks.Find(kStart + kPatience + seconds(1))) == "");
  Block called = Waits(1, "y", {0});  // an idle thread has made its first call
  called.announced[0].count = kCount + 1;
  called.alone = false;
  deadlocks.Hear(called);
  CHECK(Summary(deadlocks.Find(kStart + 5 * kPatience)) == "");
  moved.number += 1000;  // a new wait of the same thread
  hear(moved);
  CHECK(Summary(deadlocks.Find(kStart + 5 * kPatience)) == "");
  CHECK(Summary(deadlocks.Find(kStart + 6 * kPatience)) == "certain 0 1");
  CHECK(deadlocks.empty());
}

TEST_CASE("deadlocks: the texts of idle threads") {
  Deadlocks deadlocks{seconds(0), std::chrono::milliseconds(2500)};
  Block busy = Waits(0, "x", {1});
  busy.alone = false;
  busy.others_are_idle = true;
  busy.others = "'logger' (log.py:7)";
  deadlocks.Hear(busy);
  deadlocks.Hear(Waits(1, "y", {0}));
  const std::string places =
      "Ranks wait for different operations: rank 0 in allreduce 'x' (train.py:10), rank 1 in allreduce 'y' "
      "(train.py:11). ";
  CHECK(deadlocks.Find(kStart).at(0).text ==
        places +
            "Unless another thread of these ranks still calls what the others wait for, they wait for 2.5 s and then "
            "fail: all ranks must call the same collectives.");
  CHECK(deadlocks.Find(kStart + seconds(3)).at(0).text ==
        places +
            "They have waited for more than 2.5 s, and their other threads, which have never called Horovod, did not "
            "help: rank 0: 'logger' (log.py:7). All ranks must call the same collectives.");
}

TEST_CASE("deadlocks: the texts") {
  Deadlocks deadlocks{seconds(0), kPatience};
  Block same = Waits(2, "x", {1});
  same.what = "allreduce 'x' (train.py:10)";
  deadlocks.Hear(Waits(0, "x", {1}));
  deadlocks.Hear(Waits(1, "y", {0, 2}));
  deadlocks.Hear(same);
  CHECK(deadlocks.Find(kStart).at(0).text ==
        "Ranks wait for different operations: ranks 0, 2 in allreduce 'x' (train.py:10), rank 1 in allreduce 'y' "
        "(train.py:11). All ranks must call the same collectives.");
  Block uncertain = Waits(0, "x", {1});
  uncertain.alone = false;
  deadlocks.Hear(uncertain);
  deadlocks.Hear(Waits(1, "y", {0}));
  CHECK(deadlocks.Find(kStart).at(0).text ==
        "Ranks wait for different operations: rank 0 in allreduce 'x' (train.py:10), rank 1 in allreduce 'y' "
        "(train.py:11). Unless another thread of these ranks still calls what the others wait for, they wait for ever: "
        "all ranks must call the same collectives.");
  for (int rank = 0; rank < 40; ++rank) deadlocks.Hear(Waits(rank, std::to_string(rank), {(rank + 1) % 40}));
  CHECK(deadlocks.Find(kStart).at(0).text.find("rank 7 in allreduce '7' (train.py:17) and 32 more.") !=
        std::string::npos);
}

TEST_CASE("deadlocks: what ranks send each other comes out as it went in") {
  Block block = Waits(3, "x", {1, 2});
  block.group = "g";
  block.others_are_idle = true;
  block.others = "'logger' (log.py:7)";
  std::string once, twice;
  Encode(block, &once);
  std::string_view in = once;
  Block copy;
  REQUIRE(Decode(&in, &copy));
  CHECK(in.empty());
  Encode(copy, &twice);
  CHECK(once == twice);
  CHECK((copy.others_are_idle && copy.others == block.others && copy.what == block.what));
  Deadlock told{true, "text", {{1, {{0, 0, 3}, {2, 1, 4}}}, {2, {}}}};
  std::string whole;
  Encode(told, &whole);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::string_view part = std::string_view(whole).substr(0, bytes);
    Deadlock none;
    CHECK(!Decode(&part, &none));
  }
  std::string_view all = whole;
  Deadlock again;
  REQUIRE(Decode(&all, &again));
  CHECK(again.ranks.at(0).announced.at(1).count == 4);
}

TEST_CASE("spoken: operations as their callers know them") {
  using testing::Allreduce;
  using testing::Grouped;
  using testing::Make;
  const std::pair<Request, const char*> rows[] = {
      {Allreduce("allreduce.x"), "allreduce 'x'"},
      {Allreduce("allreduce.layer.weight"), "allreduce 'layer.weight'"},
      {Make(OpKind::kAllgather, "allgather.noname.7"), "allgather number 7 without a name"},
      {Allreduce("allreduce.noname.0.1"), "allreduce 'noname.0.1'"},
      {Allreduce("a name of its own"), "allreduce 'a name of its own'"},
      {Allreduce("broadcast.x"), "allreduce 'broadcast.x'"},
      {Grouped(Allreduce("grouped_allreduce.g_1of2"), "grouped_allreduce.g", 2), "grouped_allreduce 'g' of 2 tensors"},
      {Allreduce("DistributedOptimizer.layer.weight"),
       "backward() or step() of the optimizer whose first parameter is 'layer.weight'"},
      {Allreduce("DistributedOptimizer.a (b).weight (4 parameters, 1a2b3c4d.0)"),
       "backward() or step() of the optimizer whose first parameter is 'a (b).weight' (4 parameters, 1a2b3c4d.0)"},
      {Allreduce("DistributedOptimizer.a (b)"),
       "backward() or step() of the optimizer whose first parameter is 'a (b)'"},
      {Make(OpKind::kBarrier, "barrier.noname.1"), "hvd.barrier()"},
      {testing::Join(), "hvd.join()"},
      {testing::ProcessSet(OpKind::kAddProcessSet, "add", {4096, 0, 2}), "hvd.add_process_set([0, 2])"},
      {testing::ProcessSet(OpKind::kRemoveProcessSet, "remove", {3}), "hvd.remove_process_set() of process set 3"},
  };
  for (const auto& [request, words] : rows) CHECK(Spoken(request) == words);
  CHECK(SpokenCall(Allreduce("allreduce.loss")) == "'allreduce.loss'");
  CHECK(SpokenCall(Make(OpKind::kBarrier, "barrier.noname.1")) == "hvd.barrier()");
  CHECK(SpokenName("DistributedOptimizer.w") == Spoken(Allreduce("DistributedOptimizer.w")));
}

TEST_CASE("coordinator: who is missing from what a member waits for") {
  using testing::Allreduce;
  using testing::Grouped;
  using Members = std::vector<int>;
  Coordinator coordinator({0, 2, 4}, {});
  coordinator.OnRequest(0, Allreduce("x"));
  CHECK(coordinator.MissingFor(0, "x", "") == Members{1, 2});
  CHECK(coordinator.MissingFor(1, "x", "").empty());  // member 1 has not requested x
  CHECK(coordinator.MissingFor(0, "y", "").empty());
  coordinator.OnRequest(0, Grouped(Allreduce("g1"), "g", 2));
  coordinator.OnRequest(0, Grouped(Allreduce("g2"), "g", 2));
  coordinator.OnRequest(1, Grouped(Allreduce("g2"), "g", 2));
  CHECK(coordinator.MissingFor(0, "g2", "g") == Members{1, 2});  // g1 of the same group lacks the same members
  CHECK(coordinator.Heard(0) == 3);
  CHECK(coordinator.Heard(1) == 1);
  coordinator.OnRequest(2, testing::Join());
  CHECK(coordinator.MissingFor(0, "x", "") == Members{1});  // a joined member counts as present
  CHECK(coordinator.MissingFor(2, "join", "") == Members{0, 1});
  CHECK(coordinator.Heard(2) == 1);
}

TEST_CASE("coordinator: stuck members lose what they want of each other, and nothing else") {
  using testing::Allreduce;
  using testing::Grouped;
  using testing::Summary;
  Coordinator coordinator({0, 1, 2}, {});
  const Status why = Status::Mismatch("stuck");
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.OnRequest(1, Allreduce("y"));
  coordinator.OnRequest(0, Grouped(Allreduce("g1"), "g", 2));
  coordinator.OnRequest(2, Allreduce("of another"));
  for (int member : {0, 1}) coordinator.OnRequest(member, Allreduce("waits for another"));
  coordinator.FailStuck({1}, {0, 1}, why);  // member 0 was released and has submitted something since
  auto records = coordinator.Decide();
  CHECK(Summary(records) == "E:y");
  CHECK(records.at(0).error.code == Code::kMismatch);
  coordinator.FailStuck({0, 1}, {0, 1}, why);
  CHECK(Summary(coordinator.Decide()) == "E:x | E:g1");
  coordinator.FailStuck({0, 1}, {0, 1}, why);
  CHECK(coordinator.Decide().empty());
  coordinator.OnRequest(2, Allreduce("waits for another"));
  CHECK(Summary(coordinator.Decide()) == "waits for another");
  coordinator.OnRequest(2, testing::Join());
  coordinator.OnRequest(0, Allreduce("x"));
  coordinator.FailStuck({0, 2}, {0, 1, 2}, why);
  CHECK(Summary(coordinator.Decide()) == "E:of another | E:x | E:join");
}

}  // namespace hvd
