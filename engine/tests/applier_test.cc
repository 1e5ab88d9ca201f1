// SPDX-License-Identifier: Apache-2.0
// What a member does with each kind of record. Its set has one member, so that no data is exchanged.
#include "core/applier.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/membership.h"
#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using testing::Allreduce;
using testing::Make;

class OneRank {
 public:
  OneRank() : membership_(3, 0, {0}, {-1}, around_, &services_) {}

  Applier& applier() { return membership_.applier; }

  // Submit an operation that the leader already knows. Each element of its input is `fill`, and its output is a
  // separate tensor.
  void Submit(const Request& request, float fill = 1) {
    auto operation = std::make_unique<Operation>();
    operation->request = request;
    operation->handle = handles_[request.name] = std::make_shared<Handle>();
    operation->handle->left = 1;
    operation->handle->outputs.resize(1);
    auto& [input, output] = tensors_[request.name];
    input.assign(static_cast<size_t>(request.Elements()), fill);
    output.assign(input.size(), 0);
    operation->input = reinterpret_cast<const std::byte*>(input.data());
    operation->output = reinterpret_cast<std::byte*>(output.data());
    membership_.state.pending().Add(std::move(operation));
  }
  void Join() { membership_.state.Join(); }

  // Apply `record` as the next record of the log.
  Applier::Outcome Apply(Record record) {
    record.sequence = ++sequence_;
    return applier().Apply(&record);
  }
  Applier::Outcome Run(std::vector<Entry> entries) {
    Record record;
    record.entries = std::move(entries);
    return Apply(std::move(record));
  }
  Applier::Outcome FailWith(const char* text, std::vector<std::string> names) {
    Record record;
    record.kind = RecordKind::kError;
    record.names = std::move(names);
    record.error = Status::Mismatch(text);
    return Apply(std::move(record));
  }
  Applier::Outcome Evict(std::vector<uint32_t> slots) {
    Record record;
    record.kind = RecordKind::kEvict;
    record.evicted = std::move(slots);
    return Apply(std::move(record));
  }
  bool Step() {
    Status status;
    applier().Step(&status);
    return status.ok();
  }

  bool done(const std::string& name) { return handles_[name]->done; }
  const Handle& handle(const std::string& name) { return *handles_[name]; }
  const std::vector<float>& output(const std::string& name) { return tensors_[name].second; }
  void Skip() { ++sequence_; }

 private:
  Settings settings_;
  std::vector<int> host_of_rank_{0};
  Submissions submissions_;
  Timeline timeline_{0};
  Departures departures_{0, {"here"}, {}};
  Completions completions_{&submissions_, &timeline_};
  Counters counters_;
  Traffic traffic_;
  Services services_{&settings_, nullptr,    nullptr,   &departures_, &completions_,
                     &timeline_, &counters_, &traffic_, Log()};
  Surroundings around_{&settings_, 0, &host_of_rank_, nullptr, nullptr, nullptr, [] {}};
  Membership membership_;
  uint64_t sequence_ = 0;
  std::map<std::string, std::shared_ptr<Handle>> handles_;
  std::map<std::string, std::pair<std::vector<float>, std::vector<float>>> tensors_;
};

Request Sum(const std::string& name) {
  Request request = Allreduce(name);
  request.dtype = DType::kFloat32;
  request.op = ReduceOp::kSum;
  return request;
}

// Return an entry with the full description, which members remember under `slot`. Cached() returns one with the slot
// alone.
Entry Full(const Request& request, uint32_t slot = kNoSlot) {
  Entry entry;
  entry.slot = slot;
  entry.request = request;
  return entry;
}
Entry Cached(uint32_t slot) {
  Entry entry;
  entry.slot = slot;
  entry.cached = true;
  return entry;
}

TEST_CASE("applier: an agreed batch runs when it is stepped, and finishes what was submitted") {
  OneRank rank;
  rank.Submit(Sum("x"), 2);
  rank.Submit(Sum("y"), 3);
  rank.Submit(Sum("z"), 4);
  CHECK(rank.Run({Full(Sum("x")), Full(Sum("y"))}).status.ok());
  CHECK(rank.applier().busy());
  CHECK_FALSE(rank.done("x"));
  CHECK(rank.Step());
  CHECK_FALSE(rank.applier().busy());
  CHECK(rank.done("x"));
  CHECK(rank.handle("y").status.ok());
  CHECK(rank.output("x") == std::vector<float>{2, 2});
  CHECK(rank.output("y") == std::vector<float>{3, 3});
  CHECK_FALSE(rank.done("z"));
}

TEST_CASE("applier: a log with a gap is the leader's fault") {
  OneRank rank;
  rank.Submit(Sum("x"));
  rank.Skip();
  const Applier::Outcome outcome = rank.Run({Full(Sum("x"))});
  CHECK(outcome.status.text == "records of process set 3 came out of order");
  CHECK(outcome.status.lost_rank == 0);
  CHECK_FALSE(rank.applier().busy());
}

TEST_CASE("applier: a batch of what was never submitted is the leader's fault, and what it took fails with the rest") {
  OneRank rank;
  rank.Submit(Sum("x"));
  const Applier::Outcome outcome = rank.Run({Full(Sum("x")), Full(Sum("y"))});
  CHECK(outcome.status.text == "a batch names 'y', which this rank never submitted");
  CHECK(outcome.status.lost_rank == 0);
  rank.applier().Fail(Status::Failed("over"));
  CHECK(rank.done("x"));
  CHECK(rank.handle("x").status.text == "over");
  CHECK_FALSE(rank.applier().busy());
}

TEST_CASE("applier: who has joined takes part in batches of which it submitted nothing") {
  OneRank rank;
  rank.Join();
  CHECK(rank.Run({Full(Sum("x"))}).status.ok());
  CHECK(rank.Step());
  CHECK_FALSE(rank.applier().busy());
}

TEST_CASE("applier: a slot stands for its tensor until it is evicted") {
  OneRank rank;
  rank.Submit(Sum("x"));
  CHECK(rank.Run({Full(Sum("x"), 7)}).status.ok());
  CHECK(rank.Step());
  rank.Submit(Sum("x"), 5);
  CHECK(rank.Run({Cached(7)}).status.ok());
  CHECK(rank.Step());
  CHECK(rank.output("x") == std::vector<float>{5, 5});
  CHECK(rank.Evict({7, 8}).status.ok());
  rank.Submit(Sum("x"));
  const Applier::Outcome outcome = rank.Run({Cached(7)});
  CHECK(outcome.status.text == "a batch names a cache slot that nobody assigned");
  CHECK(outcome.status.lost_rank == 0);
}

TEST_CASE("applier: an error fails the tensors it names and no others") {
  OneRank rank;
  rank.Submit(Sum("x"));
  rank.Submit(Sum("y"));
  CHECK(rank.FailWith("shapes differ", {"x", "never heard of"}).status.ok());
  CHECK(rank.done("x"));
  CHECK(rank.handle("x").status.code == Code::kMismatch);
  CHECK(rank.handle("x").status.text == "shapes differ");
  CHECK_FALSE(rank.done("y"));
}

TEST_CASE("applier: an error that names no tensor ends the world") {
  OneRank rank;
  const Applier::Outcome outcome = rank.FailWith("a broken protocol", {});
  CHECK(outcome.status.text == "a broken protocol");
  CHECK(outcome.status.lost_rank == 0);
}

TEST_CASE("applier: what moves no data is finished by its record") {
  OneRank rank;
  const Request barrier = Make(OpKind::kBarrier, "barrier", {}), join = Make(OpKind::kJoin, "join", {});
  rank.Submit(barrier);
  CHECK(rank.Run({Full(barrier)}).status.ok());
  CHECK(rank.done("barrier"));
  rank.Submit(join);
  rank.Join();
  Entry joined = Full(join);
  joined.sizes = {5};
  CHECK(rank.Run({joined}).status.ok());
  CHECK(rank.done("join"));
  CHECK(rank.handle("join").value == 5);
  // The join is over, so a batch must contain only tensors that this rank has submitted.
  CHECK_FALSE(rank.Run({Full(Sum("x"))}).status.ok());
}

TEST_CASE("applier: which sets there are is left to others") {
  for (OpKind kind : {OpKind::kAddProcessSet, OpKind::kRemoveProcessSet}) {
    OneRank rank;
    const Request request = Make(kind, "change", {});
    rank.Submit(request);
    const Applier::Outcome outcome = rank.Run({Full(request)});
    CHECK(outcome.status.ok());
    REQUIRE(static_cast<bool>(outcome.change));
    CHECK(outcome.change->request.name == "change");
    CHECK_FALSE(rank.done("change"));
  }
}

}  // namespace
}  // namespace hvd
