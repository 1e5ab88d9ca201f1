// SPDX-License-Identifier: Apache-2.0
// Which tensors share a batch. A plan lists the batch of each tensor.
#include "agreement/fusion.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace hvd {
namespace {

FusionItem Item(size_t bytes, DType dtype = DType::kFloat32, uint32_t group = 0) {
  FusionItem item;
  item.key.dtype = dtype;
  item.bytes = bytes;
  item.group = group;
  return item;
}

std::vector<uint32_t> Plan(const std::vector<FusionItem>& items, size_t threshold, bool disable_group_fusion = false) {
  FusionPlanner planner;
  return planner.Plan(items, {threshold, disable_group_fusion});
}

using Batches = std::vector<uint32_t>;

TEST_CASE("tensors fill a batch up to the threshold and not beyond") {
  const struct {
    std::vector<size_t> bytes;
    size_t threshold;
    Batches batches;
  } cases[] = {
      {{}, 100, {}},
      {{10}, 100, {0}},
      {{50, 50}, 100, {0, 0}},
      {{50, 51}, 100, {0, 1}},
      // A tensor that does not fit is passed over, and later ones may fill the batch.
      {{50, 51, 50, 49}, 100, {0, 1, 0, 1}},
      {{500, 10, 10}, 100, {0, 1, 1}},  // a tensor above the threshold gets its own batch
      {{100, 0, 1}, 100, {0, 0, 1}},
      {{10, 10}, 0, {0, 1}},
      {{0, 0}, 0, {0, 1}},
      {{std::numeric_limits<size_t>::max(), 10, 10}, std::numeric_limits<size_t>::max(), {0, 1, 1}},
  };
  for (const auto& c : cases) {
    std::vector<FusionItem> items;
    for (size_t bytes : c.bytes) items.push_back(Item(bytes));
    CHECK(Plan(items, c.threshold) == c.batches);
  }
}

TEST_CASE("every part of the key keeps tensors apart, and those between are passed over") {
  using Change = void (*)(FusionKey*);
  const Change changes[] = {
      [](FusionKey* k) { k->kind = OpKind::kReducescatter; },
      [](FusionKey* k) { k->dtype = DType::kFloat16; },
      [](FusionKey* k) { k->op = ReduceOp::kAdasum; },
      [](FusionKey* k) { k->root = 1; },
      [](FusionKey* k) { k->devices = 9; },
      [](FusionKey* k) { k->prescale = 2; },
      [](FusionKey* k) { k->postscale = 2; },
  };
  for (Change change : changes) {
    FusionItem other = Item(1);
    change(&other.key);
    CHECK(Plan({Item(1), other, Item(1), other}, 100) == Batches{0, 1, 0, 1});
  }
}

TEST_CASE("tensors with factors that are no numbers are fused") {
  FusionItem item = Item(1);
  item.key.postscale = std::nan("");
  CHECK(Plan({item, item}, 100) == Batches{0, 0});
}

TEST_CASE("which kinds are fused at all") {
  const struct {
    OpKind kind;
    bool fused;
  } cases[] = {
      {OpKind::kAllreduce, true},     {OpKind::kAllgather, true},      {OpKind::kBroadcast, true},
      {OpKind::kReducescatter, true}, {OpKind::kAlltoall, false},      {OpKind::kBarrier, false},
      {OpKind::kJoin, false},         {OpKind::kAddProcessSet, false}, {OpKind::kRemoveProcessSet, false},
  };
  for (const auto& c : cases) {
    FusionItem item = Item(1);
    item.key.kind = c.kind;
    CHECK((Plan({item, item}, 100) == Batches{0, 0}) == c.fused);
  }
}

TEST_CASE("a group is fused where it fits and agrees, with others unless that is disabled") {
  const auto f32 = DType::kFloat32;
  const auto f64 = DType::kFloat64;
  const std::vector<FusionItem> items = {Item(10, f32),    Item(10, f32, 1), Item(10, f64, 1),
                                         Item(10, f32, 1), Item(10, f32, 2), Item(10, f32)};
  CHECK(Plan(items, 100) == Batches{0, 0, 1, 0, 0, 0});
  CHECK(Plan(items, 100, true) == Batches{0, 1, 2, 1, 3, 0});
  CHECK(Plan(items, 20, true) == Batches{0, 1, 2, 1, 3, 0});
  CHECK(Plan(items, 10, true) == Batches{0, 1, 2, 3, 4, 5});
  CHECK(Plan(items, 0) == Batches{0, 1, 2, 3, 4, 5});
}

TEST_CASE("a planner can be used again") {
  FusionPlanner planner;
  planner.Plan({Item(1), Item(200), Item(1)}, {100, false});
  CHECK(planner.counts() == std::vector<uint32_t>{2, 1});
  CHECK(planner.Plan({Item(60), Item(60)}, {100, false}) == Batches{0, 1});
  CHECK(planner.counts() == std::vector<uint32_t>{1, 1});
}

TEST_CASE("bytes of an item: allgather counts what all members bring") {
  Reports reports(3);
  for (size_t member = 0; member < 3; ++member) {
    Request request;
    request.kind = OpKind::kAllgather;
    request.shape = {static_cast<int64_t>(member) * 2, 5};
    reports.Add(member, request);
  }
  CHECK(FusionItemOf(reports).bytes == 6 * 5 * 4);

  Reports reduced(3);
  Request request;
  request.shape = {5};
  request.dtype = DType::kFloat64;
  reduced.Add(1, request);  // the other members have joined
  CHECK(FusionItemOf(reduced).bytes == 40);
}

TEST_CASE("tensors on other devices of any member are kept apart") {
  Reports same(2);
  Reports moved(2);
  Request request;
  request.device = 0;
  same.Add(0, request);
  moved.Add(0, request);
  same.Add(1, request);
  request.device = 1;
  moved.Add(1, request);
  CHECK_FALSE(FusionItemOf(same).key == FusionItemOf(moved).key);
}

}  // namespace
}  // namespace hvd
