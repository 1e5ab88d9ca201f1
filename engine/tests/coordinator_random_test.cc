// SPDX-License-Identifier: Apache-2.0
// Simulated members that apply the log late, each at its own pace, submit at random and change the shapes of their
// tensors. Whatever the interleaving, every operation finishes identically on all members, and all end with the same
// cache.
#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>

#include "agreement/coordinator.h"
#include "tests/coordinator_helpers.h"
#include "tests/repeats.h"

namespace hvd {
namespace {

using testing::Allreduce;
using testing::Alltoall;
using testing::Make;

struct Message {
  uint32_t slot = kNoSlot;
  uint64_t seen = 0;
  Request request;
};

struct Cached {
  std::string name;
  Request own;
};

struct Member {
  std::deque<Message> outbox;
  std::deque<Record> log;  // published records that this member has not applied
  uint64_t applied = 0;
  std::map<std::string, Request> pending;
  std::map<uint32_t, Cached> cache;
  std::map<std::string, uint32_t> slot_of;
  std::vector<std::string> finished;  // names of finished operations in order, with errors marked

  void Submit(const Request& request) {
    pending[request.name] = request;
    Message message;
    message.seen = applied;
    const auto slot = slot_of.find(request.name);
    if (slot != slot_of.end() && cache.at(slot->second).own == request) {
      message.slot = slot->second;
    } else {
      message.request = request;
    }
    outbox.push_back(message);
  }

  void Apply(const Record& record) {
    REQUIRE(record.sequence == applied + 1);
    applied = record.sequence;
    for (uint32_t slot : record.evicted) {
      REQUIRE(cache.count(slot) == 1);
      slot_of.erase(cache[slot].name);
      cache.erase(slot);
    }
    for (const std::string& name : record.names) Finish(name, "E:" + name);
    if (record.kind == RecordKind::kError) REQUIRE_FALSE(record.names.empty());
    for (const Entry& entry : record.entries) {
      if (entry.cached) REQUIRE(cache.count(entry.slot) == 1);
      const std::string name = entry.cached ? cache[entry.slot].name : entry.request.name;
      if (!entry.cached && entry.slot != kNoSlot) {
        cache[entry.slot] = {name, pending.at(name)};
        slot_of[name] = entry.slot;
      }
      if (entry.cached) REQUIRE(cache[entry.slot].own == pending.at(name));
      Finish(name, name);
    }
  }

  void Finish(const std::string& name, const std::string& text) {
    REQUIRE(pending.erase(name) == 1);
    finished.push_back(text);
  }
};

// Return the n-th use of a name as a member submits it. All members submit the same, except for fields that may differ
// and for deliberate mismatches.
Request Describe(int name, int use, int member, int members) {
  std::seed_seq seed{name, use};
  std::mt19937 random(seed);
  const int64_t variant = random() % 4 == 0 ? 1 : 0;
  const bool disagree = random() % 16 == 0 && member == 1;
  const std::string text = "t" + std::to_string(name);
  if (name % 3 == 0) return Make(OpKind::kAllgather, text, {member + variant, disagree ? 2 : 3});
  const std::vector<int64_t> splits(static_cast<size_t>(members), variant);
  if (name % 3 == 1) return Alltoall(text, splits, disagree ? 0 : 8);
  return Allreduce(text, {4 + variant + (disagree ? 1 : 0)});
}

void Simulate(unsigned seed, int members, size_t capacity) {
  constexpr int kNames = 7;
  constexpr int kUses = 40;
  std::mt19937 random(seed);
  CoordinatorOptions options;
  options.cache_capacity = capacity;
  options.fusion_threshold = 100;
  std::vector<int> ranks;
  for (int member = 0; member < members; ++member) ranks.push_back(member);
  Coordinator coordinator(ranks, options);
  std::vector<Member> world(static_cast<size_t>(members));
  std::vector<std::vector<int>> uses(world.size(), std::vector<int>(kNames));
  const auto done = [&] {
    for (const Member& member : world) {
      if (member.finished.size() < size_t{kNames} * kUses) return false;
    }
    return true;
  };
  for (int step = 0; !done(); ++step) {
    if (step == 200000) FAIL("no end in sight");
    const auto index = random() % world.size();
    Member& member = world[index];
    const auto name = static_cast<int>(random() % kNames);
    int& use = uses[index][static_cast<size_t>(name)];
    switch (random() % 4) {
      case 0:
        if (use < kUses && !member.pending.count("t" + std::to_string(name))) {
          member.Submit(Describe(name, use++, static_cast<int>(index), members));
        }
        break;
      case 1:
        if (member.outbox.empty()) break;
        if (member.outbox[0].slot != kNoSlot) {
          coordinator.OnReady(static_cast<int>(index), member.outbox[0].slot, member.outbox[0].seen);
        } else {
          coordinator.OnRequest(static_cast<int>(index), member.outbox[0].request);
        }
        member.outbox.pop_front();
        break;
      case 2:
        for (const Record& record : coordinator.Decide()) {
          for (Member& each : world) each.log.push_back(record);
        }
        break;
      default:
        if (member.log.empty()) break;
        member.Apply(member.log[0]);
        member.log.pop_front();
    }
  }
  for (const Member& member : world) {
    CHECK(member.finished == world[0].finished);
    CHECK(member.slot_of == world[0].slot_of);
    CHECK(member.cache.size() <= capacity);
    CHECK(member.log.empty());
  }
  CHECK(coordinator.Pending().empty());
}

TEST_CASE("members that lag behind the log end alike") {
  for (unsigned seed = 0; seed < Repeats(8); ++seed) {
    for (int members : {2, 3, 5}) {
      for (size_t capacity : {0, 1, 3, 5, 100}) Simulate(seed, members, capacity);
    }
  }
}

}  // namespace
}  // namespace hvd
