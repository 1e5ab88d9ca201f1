// SPDX-License-Identifier: Apache-2.0
// One order of launches for all ranks, however their process sets overlap and whichever operation becomes ready first.
#include "agreement/launch_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "agreement/coordinator.h"

namespace {

using hvd::LaunchOrder;
using hvd::Turn;

TEST_CASE("turns are taken in their order alone") {
  LaunchOrder order;
  const Turn first{0, 0, 7}, second{3, 2, 1}, third{0, 0, 8};
  CHECK_FALSE(order.Take(first));
  for (const Turn& turn : {first, second, third}) order.Add(turn);
  CHECK_FALSE(order.Take(second));
  CHECK(order.Take(first));
  CHECK_FALSE(order.Take(first));
  CHECK_FALSE(order.Take(third));
  CHECK(order.Take(second));
  CHECK(order.Take(third));
}

TEST_CASE("a batch that is launched piece by piece has its turn alone") {
  LaunchOrder order;
  const Turn first{0, 0, 1}, pieces{3, 2, 1}, last{0, 0, 2};
  for (const Turn& turn : {first, pieces, last}) order.Add(turn);
  CHECK(order.Take(first));
  CHECK_FALSE(order.Take(pieces, true));  // the first is not launched yet
  order.Launched(first);
  CHECK(order.Take(pieces, true));
  CHECK_FALSE(order.Take(last));
  order.Launched(pieces);
  CHECK(order.Take(last));
}

TEST_CASE("a set that is removed ends its turn") {
  LaunchOrder order;
  for (const Turn& turn : {Turn{3, 2, 1}, Turn{0, 0, 2}}) order.Add(turn);
  CHECK(order.Take({3, 2, 1}, true));
  order.Forget(3);
  CHECK(order.Take({0, 0, 2}, true));
}

TEST_CASE("whoever needs no turn, or is gone, keeps nobody waiting") {
  LaunchOrder order;
  for (const Turn& turn : {Turn{0, 0, 1}, Turn{2, 5, 1}, Turn{2, 5, 2}, Turn{0, 0, 2}}) order.Add(turn);
  order.Want({2, 5, 3});
  order.Want({4, 6, 1});
  order.Drop({0, 0, 1});
  order.Forget(2);
  CHECK(order.Take({0, 0, 2}));
  const std::vector<Turn> wanted = order.TakeWanted();
  REQUIRE(wanted.size() == 1);
  CHECK(wanted[0] == Turn{4, 6, 1});
  CHECK_FALSE(order.wants());
}

TEST_CASE("turns that were published can be taken when no more will be") {
  LaunchOrder order;
  order.Add({3, 1, 1});
  CHECK(order.MayCome({3, 1, 2}));
  order.Close("rank 0 has left");
  CHECK(order.MayCome({3, 1, 1}));
  CHECK_FALSE(order.MayCome({3, 1, 2}));
  CHECK(order.closed() == "rank 0 has left");
  CHECK(order.Take({3, 1, 1}));
}

TEST_CASE("the global leader publishes turns in its log") {
  hvd::Coordinator coordinator({0, 1}, {});
  CHECK(coordinator.Decide().empty());
  coordinator.Give({3, 1, 9});
  coordinator.Give({2, 1, 4});
  const std::vector<hvd::Record> records = coordinator.Decide();
  REQUIRE(records.size() == 1);
  CHECK(records[0].kind == hvd::RecordKind::kTurns);
  CHECK(records[0].sequence == 1);
  CHECK(records[0].turns == std::vector<Turn>{{3, 1, 9}, {2, 1, 4}});
  CHECK(coordinator.Decide().empty());
}

// Model of ranks in sets that overlap. A batch is ready at a member when it is first in its set's log and the member
// picks that set. The set's leader then requests the launch slot. Messages take random time.
struct Model {
  struct Member {
    LaunchOrder order;
    std::map<int, uint64_t> next;  // by set: the batch that is first in the log
    size_t heard = 0;              // entries of the global log that this member has applied
    std::vector<Turn> launched;
  };
  std::vector<std::vector<int>> sets;  // the first set contains all ranks
  std::vector<uint64_t> batches;       // number of batches, by set
  std::vector<Member> members;
  std::vector<Turn> log;
  std::map<int, uint64_t> asked;  // by set: number of batches for which the leader has requested a launch slot

  void Step(int rank, int set) {
    Member& member = members[static_cast<size_t>(rank)];
    uint64_t& next = member.next[set];
    if (next == batches[static_cast<size_t>(set)]) return;
    const Turn turn{set, 0, next};
    const bool leads = sets[static_cast<size_t>(set)][0] == rank;
    if (set != 0 && leads && asked[set] == next) {
      ++asked[set];
      log.push_back(turn);
    }
    if (!member.order.Take(turn)) return;
    member.launched.push_back(turn);
    ++next;
  }
  void Hear(int rank) {
    Member& member = members[static_cast<size_t>(rank)];
    if (member.heard == log.size()) return;
    const Turn& turn = log[member.heard++];
    const std::vector<int>& set = sets[static_cast<size_t>(turn.set)];
    if (std::find(set.begin(), set.end(), rank) != set.end()) member.order.Add(turn);
  }
  bool Over() const {
    for (size_t rank = 0; rank < members.size(); ++rank) {
      for (size_t set = 0; set < sets.size(); ++set) {
        const bool in = std::find(sets[set].begin(), sets[set].end(), static_cast<int>(rank)) != sets[set].end();
        const auto found = members[rank].next.find(static_cast<int>(set));
        if (in && (found == members[rank].next.end() || found->second != batches[set])) return false;
      }
    }
    return true;
  }
};

TEST_CASE("sets that overlap come to an end, in the same order everywhere") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Model model;
    model.sets = {{0, 1, 2, 3}, {0, 1, 2}, {1, 2, 3}, {0, 3}, {1, 2}};
    model.batches = {5, 4, 4, 6, 3};
    model.members.resize(4);
    uint64_t published = 0;
    for (int step = 0; step < 100000 && !model.Over(); ++step) {
      const int rank = static_cast<int>(random() % 4), set = static_cast<int>(random() % model.sets.size());
      const std::vector<int>& members = model.sets[static_cast<size_t>(set)];
      if (random() % 8 == 0 && published < model.batches[0]) model.log.push_back({0, 0, published++});
      if (std::find(members.begin(), members.end(), rank) != members.end()) model.Step(rank, set);
      if (random() % 3 == 0) model.Hear(rank);
    }
    REQUIRE_MESSAGE(model.Over(), "seed " << seed);
    for (const auto& one : model.members) {
      for (const auto& other : model.members) {
        std::vector<Turn> mine, theirs;
        const auto has = [](const std::vector<Turn>& all, const Turn& turn) {
          return std::find(all.begin(), all.end(), turn) != all.end();
        };
        for (const Turn& turn : one.launched) has(other.launched, turn) ? mine.push_back(turn) : void();
        for (const Turn& turn : other.launched) has(one.launched, turn) ? theirs.push_back(turn) : void();
        CHECK(mine == theirs);
      }
    }
  }
}

}  // namespace
