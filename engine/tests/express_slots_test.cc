// SPDX-License-Identifier: Apache-2.0
// Tensors that lose their cache slots while parts of them are in flight on the fast path. A round that the leader has
// finished finishes on every rank, whatever record follows, and no state remains of rounds that never finish.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/membership.h"
#include "tests/connector_world.h"
#include "tests/coordinator_helpers.h"
#include "tests/whole_world.h"

namespace hvd {
namespace {

constexpr uint32_t kSlot = 0;

// One of three ranks on three hosts. The test makes up the messages of the other ranks, so that no data is exchanged.
class OneOfThree {
 public:
  explicit OneOfThree(int rank) : rank_(rank) {
    world_.SetPeers();
    Entry entry;
    entry.slot = kSlot;
    entry.request = testing::Allreduce("x");
    membership_.state.cache().Put(std::move(entry));
  }

  ExpressProtocol& express() { return membership_.express; }
  MemberState& state() { return membership_.state; }
  bool knows_slot() { return state().cache().Find(kSlot) != nullptr; }

  std::unique_ptr<Operation> Call(std::vector<float>* data) {
    auto operation = std::make_unique<Operation>();
    operation->request = testing::Allreduce("x");
    operation->handle = handle = std::make_shared<Handle>();
    handle->left = 1;
    handle->outputs.resize(1);
    operation->input = reinterpret_cast<const std::byte*>(data->data());
    operation->output = reinterpret_cast<std::byte*>(data->data());
    return operation;
  }
  // Send this rank's part to all others on the fast path.
  void Tell(std::vector<float>* data) {
    auto operation = Call(data);
    REQUIRE(express().Send(&operation, kSlot));
    CHECK(express().Finish(kSlot).ok());
  }
  void Hear(int from, uint32_t round, const std::vector<float>& data) {
    const size_t bytes = data.size() * sizeof(float);
    std::string message = control::EncodeExpress(membership_.set.tag(), {kSlot, round, state().applied()}, bytes);
    message.append(reinterpret_cast<const char*>(data.data()), bytes);
    CHECK(express().OnPart(from, std::string_view(message).substr(control::kHeaderBytes), false).ok());
  }

  // Evict the slot. `ended` is the round up to which the leader has finished it.
  void Evict(uint32_t ended) {
    Record record;
    record.kind = RecordKind::kEvict;
    record.evicted = {kSlot};
    record.rounds = {ended};
    Apply(std::move(record));
  }
  std::vector<uint32_t> RoundsOfEviction(std::vector<uint32_t> slots) {
    Record record;
    record.kind = RecordKind::kEvict;
    record.evicted = std::move(slots);
    express().AddRounds(&record);
    return record.rounds;
  }
  void Fail() {
    Record record;
    record.kind = RecordKind::kError;
    record.names = {"x"};
    record.rounds = {kNoRound};
    record.error = Status::Failed("somebody has left");
    Apply(std::move(record));
  }

  std::shared_ptr<Handle> handle;  // handle of the last call

 private:
  void Apply(Record record) {
    record.sequence = state().applied() + 1;
    CHECK(membership_.applier.Apply(&record).status.ok());
  }

  connector_testing::Connectors world_;
  int rank_;
  Connector* connectors_[3] = {world_.Add(connector_testing::Rank(0))->connector.get(),
                               world_.Add(connector_testing::Rank(1))->connector.get(),
                               world_.Add(connector_testing::Rank(2))->connector.get()};
  Neighbours nobody_{connector_testing::Rank(rank_), "host"};
  Mailbox mailbox_{rank_, nullptr, &nobody_, connectors_[rank_]};
  Settings settings_;
  std::vector<int> host_of_rank_{0, 1, 2};
  Submissions submissions_;
  Timeline timeline_{0};
  Departures departures_{rank_, {"a", "b", "c"}, {}};
  Completions completions_{&submissions_, &timeline_};
  Counters counters_;
  Traffic traffic_;
  Services services_{&settings_, &nobody_,   &mailbox_, &departures_, &completions_,
                     &timeline_, &counters_, &traffic_, Log()};
  Surroundings around_{&settings_, rank_, &host_of_rank_, nullptr, &nobody_, connectors_[rank_], [] {}};
  Membership membership_{3, 0, {0, 1, 2}, {-1, -1, -1}, around_, &services_};
};

}  // namespace

TEST_CASE("express slots: what the leader has finished is none of what fails later under its name") {
  OneOfThree rank(1);
  std::vector<float> data = {1, 1};
  rank.Tell(&data);
  rank.Hear(0, 0, {2, 2});
  rank.Evict(1);
  rank.Fail();
  CHECK_FALSE(rank.handle->done);
  rank.Hear(2, 0, {4, 4});
  CHECK(rank.handle->done);
  CHECK(rank.handle->status.ok());
  CHECK(data == std::vector<float>{7, 7});
  CHECK_FALSE(rank.knows_slot());
}

TEST_CASE("express slots: what the leader has finished is certain, even if it leaves") {
  OneOfThree rank(1);
  std::vector<float> data = {1, 1};
  rank.Tell(&data);
  rank.Hear(0, 0, {2, 2});
  rank.Evict(1);
  CHECK(rank.express().Settled(*rank.state().pending().Find("x")));
}

TEST_CASE("express slots: what was told too late waits for the leader's word like anything else") {
  OneOfThree rank(1);
  std::vector<float> data = {1, 1};
  rank.Tell(&data);
  rank.Hear(2, 0, {2, 2});
  rank.Evict(0);
  CHECK_FALSE(rank.knows_slot());
  CHECK_FALSE(rank.express().under_way());
  CHECK_FALSE(rank.express().Settled(*rank.state().pending().Find("x")));
  rank.Hear(0, 0, {4, 4});  // rank 0 had not applied the eviction either
  CHECK_FALSE(rank.handle->done);
  rank.Fail();
  CHECK(rank.handle->done);
  CHECK(rank.handle->status.text == "somebody has left");
}

TEST_CASE("express slots: the leader tells how far it has come with those that it takes away") {
  OneOfThree rank(0);
  CHECK(rank.RoundsOfEviction({kSlot, 7}) == std::vector<uint32_t>{0, 0});
  std::vector<float> data = {1, 1};
  rank.Tell(&data);
  rank.Hear(1, 0, {2, 2});
  CHECK(rank.RoundsOfEviction({kSlot}) == std::vector<uint32_t>{0});
  rank.Hear(2, 0, {4, 4});
  CHECK(rank.handle->done);
  CHECK(rank.RoundsOfEviction({7, kSlot}) == std::vector<uint32_t>{0, 1});
}

TEST_CASE("express slots: old parts do not finish a new call") {
  OneOfThree rank(1);
  std::vector<float> data = {1, 1}, fresh = {8, 8};
  rank.Tell(&data);
  rank.Hear(0, 0, {2, 2});
  CHECK(rank.state().pending().Take("x"));  // the first call failed
  rank.state().pending().Add(rank.Call(&fresh));
  rank.Hear(2, 0, {4, 4});
  CHECK_FALSE(rank.handle->done);
  CHECK(rank.state().pending().Find("x"));
  CHECK(fresh == std::vector<float>{8, 8});
}

namespace {

void UseUsualSizes(Settings* settings) { settings->small_bytes = size_t{64} << 10; }

uint64_t Runs(testing::Rank& self) {
  const std::string told = self.world().Describe(), key = "\"express_runs\": ";
  return std::stoull(told.substr(told.find(key) + key.size()));
}

void Gather(testing::Rank& self, size_t rows) {
  std::vector<int64_t> input(rows, self.rank());
  auto operation = self.Operation<int64_t>(OpKind::kAllgather, "g", DType::kInt64, {static_cast<int64_t>(rows)},
                                           input.data(), nullptr);
  const Status status = self.Run(std::move(operation));
  CHECK_MESSAGE(status.ok(), status.text);
}

}  // namespace

// A rank that sent its part before it learned that another rank has a different number of rows drops that part.
TEST_CASE("world: a tensor whose size changes on one rank goes express again afterwards") {
  for (const testing::Layout& layout :
       {testing::Layout{2, 1, true, 8192, UseUsualSizes}, testing::Layout{3, 1, true, 8192, UseUsualSizes},
        testing::Layout{3, 2, true, 8192, UseUsualSizes}}) {
    for (size_t rows : {256, 3000}) {  // parts in shared buffers, then parts written into the others' outputs
      RunWorld(layout, [rows, &layout](testing::Rank& self) {
        for (int step = 0; step < 5; ++step) Gather(self, rows);
        const bool odd = self.rank() == self.size() - 1;
        // Long enough for the others to send their parts.
        if (odd) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const size_t other = odd ? rows + 1 : rows;
        for (int step = 0; step < 3; ++step) Gather(self, other);
        const uint64_t before = Runs(self);
        for (int step = 0; step < 20; ++step) Gather(self, other);
        if (layout.hosts == 1) CHECK(Runs(self) - before >= 18);
      });
    }
  }
}

}  // namespace hvd
