// SPDX-License-Identifier: Apache-2.0
// Which algorithm runs between hosts: a table of every choice, and how the leader's record carries the choice.
#include "agreement/algorithms.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

constexpr size_t kKiB = size_t{1} << 10, kMiB = size_t{1} << 20;
constexpr auto kDirect = HostAlgorithm::kDirect, kRing = HostAlgorithm::kRing, kDoubling = HostAlgorithm::kDoubling;

Request OfBytes(size_t bytes, OpKind kind = OpKind::kAllreduce, ReduceOp op = ReduceOp::kSum) {
  Request request = testing::Make(kind, "x", {static_cast<int64_t>(bytes)});
  request.dtype = DType::kUInt8;
  request.op = op;
  return request;
}

CoordinatorOptions ManyHosts() {
  CoordinatorOptions options;
  options.hosts = {32, true};
  return options;
}

}  // namespace

TEST_CASE("algorithms: the choice follows from the hosts, the tensor's size and what was asked for") {
  struct Row {
    HostLayout hosts;
    size_t bytes;
    AlgorithmRules rules;
    HostAlgorithm chosen;
  };
  const Row rows[] = {
      // one host, or few hosts
      {{1, false}, 4, {}, kDirect},
      {{1, false}, 100 * kMiB, {}, kDirect},
      {{2, true}, 4, {}, kDirect},
      {{8, true}, 4, {}, kDirect},
      {{8, true}, 100 * kMiB, {}, kDirect},
      // more than 8 hosts, tensors up to 256 KiB
      {{9, true}, 4, {}, kDoubling},
      {{9, true}, 256 * kKiB, {}, kDoubling},
      {{16, true}, 256 * kKiB, {}, kDoubling},
      {{17, true}, 256 * kKiB, {}, kDoubling},
      {{1000, true}, 256 * kKiB, {}, kDoubling},
      // 256 KiB to 4 MiB: direct exchange up to 16 hosts, the ring with more
      {{9, true}, 256 * kKiB + 1, {}, kDirect},
      {{16, true}, 4 * kMiB, {}, kDirect},
      {{17, true}, 256 * kKiB + 1, {}, kRing},
      {{32, true}, 4 * kMiB, {}, kRing},
      // above 4 MiB
      {{9, true}, 4 * kMiB + 1, {}, kRing},
      {{16, true}, 4 * kMiB + 1, {}, kRing},
      {{32, true}, 100 * kMiB, {}, kRing},
      {{1000, true}, SIZE_MAX / 2, {}, kRing},
      // hosts with different numbers of members
      {{9, false}, 4, {}, kDirect},
      {{32, false}, 100 * kMiB, {}, kDirect},
      {{32, false}, 100 * kMiB, {false, 1}, kDirect},
      // empty tensors
      {{32, true}, 0, {false, 2}, kDirect},
      // deterministic sums, in the order of ranks
      {{8, true}, 4, {true, -1}, kDirect},
      {{9, true}, 4, {true, -1}, kDirect},
      {{16, true}, 256 * kKiB, {true, -1}, kDirect},
      {{16, true}, 4 * kMiB + 1, {true, -1}, kRing},
      {{17, true}, 4, {true, -1}, kRing},
      {{32, true}, 100 * kMiB, {true, -1}, kRing},
      {{4, true}, 4, {true, 2}, kDirect},
      {{32, true}, 4, {true, 2}, kRing},
      {{4, true}, 4, {true, 1}, kRing},
      {{32, true}, 4, {true, 0}, kDirect},
      // an algorithm that was asked for; the number 7 names none, so the default applies
      {{2, true}, 4, {false, 1}, kRing},
      {{2, true}, 4, {false, 2}, kDoubling},
      {{32, true}, 100 * kMiB, {false, 0}, kDirect},
      {{32, true}, 100 * kMiB, {false, 2}, kDoubling},
      {{1, false}, 4, {false, 2}, kDirect},
      {{9, true}, kMiB, {false, 2}, kDoubling},
      {{9, true}, 4, {false, 7}, kDoubling},
      {{9, true}, kMiB, {false, 7}, kDirect},
  };
  for (const Row& row : rows) {
    CAPTURE(row.hosts.hosts);
    CAPTURE(row.bytes);
    CAPTURE(row.rules.wanted);
    CHECK(std::string(NameOf(ChooseAlgorithm(row.hosts, OfBytes(row.bytes), row.rules))) == NameOf(row.chosen));
  }
}

TEST_CASE("algorithms: only reductions have one, and Adasum has its own") {
  const HostLayout many{32, true};
  for (OpKind kind : {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kReducescatter, OpKind::kAlltoall}) {
    CHECK(ChooseAlgorithm(many, OfBytes(100 * kMiB, kind), {false, 1}) == kDirect);
  }
  CHECK(ChooseAlgorithm(many, OfBytes(64, OpKind::kAllreduce, ReduceOp::kAdasum), {false, 2}) == kDirect);
  CHECK(ChooseAlgorithm(many, OfBytes(64, OpKind::kAllreduce, ReduceOp::kMax), {}) == kDoubling);
}

TEST_CASE("algorithms: the record names it, and tensors that differ in it are not fused") {
  Coordinator coordinator({0, 1}, ManyHosts());
  const int64_t large = int64_t{1} << 20;  // number of float32 values
  for (int member : {0, 1}) {
    for (const auto& request : {testing::Allreduce("a", {10}), testing::Allreduce("b", {large}),
                                testing::Allreduce("c", {20}), testing::Allreduce("d", {large})}) {
      coordinator.OnRequest(member, request);
    }
  }
  const std::vector<Record> records = coordinator.Decide();
  REQUIRE(testing::Summary(records) == "a c | b d");
  for (const Entry& entry : records[0].entries) CHECK(entry.algorithm == kDoubling);
  for (const Entry& entry : records[1].entries) CHECK(entry.algorithm == kRing);
  // Tensors that are announced by their slots are fused in the same way.
  for (int member : {0, 1}) {
    for (const Record& record : records) {
      for (const Entry& entry : record.entries) coordinator.OnReady(member, entry.slot, records.back().sequence);
    }
  }
  const std::vector<Record> again = coordinator.Decide();
  REQUIRE(again.size() == 2);
  CHECK(again[0].entries.size() == 2);
  CHECK(again[1].entries.size() == 2);
}

TEST_CASE("algorithms: the number survives the wire, and one that nobody knows is refused") {
  Record record;
  record.entries.emplace_back();
  record.entries[0].request = testing::Allreduce("a");
  for (HostAlgorithm algorithm : {kDirect, kRing, kDoubling}) {
    record.entries[0].algorithm = algorithm;
    std::string bytes;
    Encode(record, &bytes);
    std::string_view in = bytes;
    Record decoded;
    REQUIRE(Decode(&in, &decoded));
    CHECK(decoded.entries[0].algorithm == algorithm);
  }
  for (int unknown : {3, 4, 127, 255}) {
    record.entries[0].algorithm = static_cast<HostAlgorithm>(unknown);
    std::string bytes;
    Encode(record, &bytes);
    std::string_view in = bytes;
    Record decoded;
    CHECK_FALSE(Decode(&in, &decoded));
  }
}

}  // namespace hvd
