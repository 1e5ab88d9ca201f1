// SPDX-License-Identifier: Apache-2.0
// Outputs that the other members write into: results equal those with staging, whichever outputs peers can reach.
#include <algorithm>
#include <atomic>

#include "collectives/push.h"
#include "tests/whole_world.h"

using hvd::Code;
using hvd::DType;
using hvd::OpKind;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

int SingleCopies(Rank& self) {
  const std::string text = self.world().Describe(), key = "\"single_copy_batches\": ";
  return std::stoi(text.substr(text.find(key) + key.size()));
}

std::unique_ptr<hvd::Buffer> Allocate(Rank& self, size_t bytes) {
  hvd::Status status;
  std::unique_ptr<hvd::Buffer> buffer = self.world().Allocate(bytes, &status);
  REQUIRE_MESSAGE(status.ok(), status.text);
  return buffer;
}

uint8_t Value(int rank, size_t i, int round) {
  return static_cast<uint8_t>(static_cast<size_t>(rank * 71 + round * 13) + i * 7);
}

std::vector<uint8_t> Input(int rank, size_t bytes, int round) {
  std::vector<uint8_t> input(bytes);
  for (size_t i = 0; i < bytes; ++i) input[i] = Value(rank, i, round);
  return input;
}

size_t RowsOf(int rank, int round) { return rank == 1 ? 0 : 9001u + static_cast<size_t>(rank * 777 + round); }

std::vector<uint8_t> Gathered(int size, int round) {
  std::vector<uint8_t> all;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<uint8_t> one = Input(rank, RowsOf(rank, round), round);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Gather into `output`, or into memory of the engine if it is null. Ranks bring different numbers of rows, and one
// brings none.
void CheckAllgather(Rank& self, int round, uint8_t* output, const std::string& name = "gather") {
  const std::vector<uint8_t> input = Input(self.rank(), RowsOf(self.rank(), round), round);
  const auto rows = static_cast<int64_t>(input.size());
  const hvd::Status status =
      self.Run(self.Operation(OpKind::kAllgather, name, DType::kUInt8, {rows}, input.data(), output));
  CHECK_MESSAGE(status.ok(), status.text);
  const auto* got = output ? output : static_cast<const uint8_t*>(self.last->outputs[0].data);
  const std::vector<uint8_t> wanted = Gathered(self.size(), round);
  CHECK(std::equal(wanted.begin(), wanted.end(), got));
}

size_t SplitOf(int from, int to, int round) {
  return to == 2 ? 0 : static_cast<size_t>(3000 + from * 500 + to + round);
}

void CheckAlltoall(Rank& self, int round, uint8_t* output) {
  std::vector<int64_t> splits;
  size_t bytes = 0;
  for (int to = 0; to < self.size(); ++to) {
    splits.push_back(static_cast<int64_t>(SplitOf(self.rank(), to, round)));
    bytes += SplitOf(self.rank(), to, round);
  }
  const std::vector<uint8_t> input = Input(self.rank(), bytes, round);
  auto operation =
      self.Operation(OpKind::kAlltoall, "exchange", DType::kUInt8, {static_cast<int64_t>(bytes)}, input.data(), output);
  operation->request.splits = splits;
  const hvd::Status status = self.Run(std::move(operation));
  CHECK_MESSAGE(status.ok(), status.text);
  const auto* got = output ? output : static_cast<const uint8_t*>(self.last->outputs[0].data);
  bool right = true;
  for (int from = 0; from < self.size(); ++from) {
    size_t begin = 0;
    for (int to = 0; to < self.rank(); ++to) begin += SplitOf(from, to, round);
    for (size_t i = 0; i < SplitOf(from, self.rank(), round); ++i) right &= *got++ == Value(from, begin + i, round);
  }
  CHECK(right);
}

void Small(hvd::Settings* settings) { settings->single_copy_bytes = 100; }

}  // namespace

TEST_CASE("push: into outputs in shared memory, ragged, with and without something to send") {
  for (int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    RunWorld({ranks, 1, true, 4096, Small}, [](Rank& self) {
      auto buffer = Allocate(self, 100'000);
      auto* output = reinterpret_cast<uint8_t*>(buffer->data());
      for (int round = 0; round < 5; ++round) {
        CheckAllgather(self, round, output + 1 + self.rank());
        CheckAlltoall(self, round, output);
      }
      CHECK(SingleCopies(self) == 10);
    });
  }
}

TEST_CASE("push: what is large is copied in several turns, so that other collectives get theirs") {
  constexpr size_t kTurn = size_t{512} << 10;
  hvd::LaneOptions options;
  options.members = 1;
  options.slot_bytes = 4096;
  hvd::Lane lane(options, {nullptr}, {hvd::StreamKey()}, nullptr, [] {});
  std::vector<uint8_t> input = Input(0, 2 * kTurn + 4096, 0), output(input.size());
  hvd::Flat source, target;
  source.Add(input.data(), input.size());
  target.Add(output.data(), output.size());
  hvd::Push push(&lane, {source}, {target});
  for (size_t turn = 1; turn <= 2; ++turn) {
    CHECK(push.Advance() == hvd::Machine::Step::kMoved);
    CHECK(std::equal(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(turn * kTurn), output.begin()));
    CHECK(output[turn * kTurn + 1] == 0);
  }
  CHECK(push.Advance() == hvd::Machine::Step::kMoved);
  CHECK(push.Advance() == hvd::Machine::Step::kDone);
  CHECK(input == output);
}

TEST_CASE("push: one output elsewhere, one rank that does not want it, several hosts, no memory: all of it works") {
  const auto one_refuses = [](hvd::Settings* settings) {
    static std::atomic<int> opened{0};
    settings->single_copy_bytes = opened++ ? 100 : 0;
  };
  const auto off = [](hvd::Settings* settings) { settings->single_copy_bytes = 0; };
  struct Case {
    Layout layout;
    int single_copies;
  };
  for (const Case& one :
       {Case{{3, 1, true, 4096, Small}, 8}, Case{{3, 1, true, 4096, one_refuses}, 0}, Case{{3, 1, true, 4096, off}, 0},
        Case{{4, 2, true, 8192, Small}, 0}, Case{{2, 1, false, 4096, Small}, 0}}) {
    RunWorld(one.layout, [&one](Rank& self) {
      auto buffer = Allocate(self, 100'000);
      std::vector<uint8_t> plain(100'000);
      for (int round = 0; round < 6; ++round) {
        const bool elsewhere = self.rank() == 1 && round % 3 == 0;
        uint8_t* output = elsewhere ? plain.data() : reinterpret_cast<uint8_t*>(buffer->data());
        CheckAllgather(self, round, output);
        CheckAlltoall(self, round, output);
      }
      CHECK(SingleCopies(self) == one.single_copies);
    });
  }
}

TEST_CASE("push: outputs of the engine's own, kept, given back and fused") {
  RunWorld({4, 1, true, 4096, Small}, [](Rank& self) {
    for (int round = 0; round < 12; ++round) {
      CheckAllgather(self, round, nullptr);
      std::shared_ptr<hvd::Handle> kept = self.last;
      CheckAllgather(self, round + 1, nullptr, "another");
      CheckAlltoall(self, round, nullptr);
      const std::vector<uint8_t> wanted = Gathered(self.size(), round);
      CHECK(std::equal(wanted.begin(), wanted.end(), static_cast<uint8_t*>(kept->outputs[0].data)));
    }
    const int before = SingleCopies(self);
    auto buffer = Allocate(self, 400'000);
    const std::vector<uint8_t> input = Input(self.rank(), 20'000, 3);
    std::vector<int64_t> handles;
    for (size_t i = 0; i < 5; ++i) {  // some of them share a batch
      auto* output = reinterpret_cast<uint8_t*>(buffer->data()) + i * 80'000;
      handles.push_back(self.Submit(self.Operation(OpKind::kAllgather, "fused" + std::to_string(i), DType::kUInt8,
                                                   {20'000}, input.data(), output)));
    }
    for (int64_t handle : handles) CHECK(self.Wait(handle).ok());
    bool right = true;
    for (size_t i = 0; i < 400'000; ++i) {
      const size_t at = i % 80'000;
      right &= buffer->data()[i] == std::byte{Value(static_cast<int>(at / 20'000), at % 20'000, 3)};
    }
    CHECK(right);
    CHECK(SingleCopies(self) > before);
  });
}

TEST_CASE("push: nobody writes over an input that has not been sent") {
  RunWorld({2, 1, true, 4096, Small}, [](Rank& self) {
    auto buffer = Allocate(self, 8000);
    std::fill_n(buffer->data(), 8000, static_cast<std::byte>(self.rank() + 1));
    auto operation = self.Operation(OpKind::kAllgather, "in its output", DType::kUInt8, {4000},
                                    buffer->data() + self.rank() * 4000, buffer->data());
    CHECK(self.Run(std::move(operation)).ok());
    CHECK(buffer->data()[0] == std::byte{1});
    CHECK(buffer->data()[7999] == std::byte{2});
    CHECK(SingleCopies(self) == 0);
  });
}

TEST_CASE("push: a rank that leaves in the middle fails it by name") {
  std::atomic<int> failed{0};
  RunWorld({3, 1, true, 4096, Small}, [&failed](Rank& self) {
    auto buffer = Allocate(self, 3 << 20);
    std::vector<uint8_t> input(1 << 20, 1);
    auto operation = [&] {
      return self.Operation(OpKind::kAllgather, "g", DType::kUInt8, {1 << 20}, input.data(),
                            reinterpret_cast<uint8_t*>(buffer->data()));
    };
    CHECK(self.Run(operation()).ok());
    CHECK(SingleCopies(self) == 1);
    if (self.rank() == 2) return;  // leaving the function closes this rank's world
    hvd::Status status = self.Run(operation());
    CHECK(status.code == Code::kFailed);
    CHECK(status.text.find("rank 2") != std::string::npos);
    ++failed;
    while (failed < 2) std::this_thread::yield();  // if this rank left first, the other one might name it instead
  });
}

TEST_CASE("broadcast: in parts, where the message would fit one slot") {
  const auto awake = [](hvd::Settings* settings) { settings->spin_us = 50; };
  RunWorld({2, 1, true, 256 << 10, awake}, [](Rank& self) {
    for (size_t bytes : {1u, 65'536u, 65'537u, 200'000u, 2'000'000u}) {
      std::vector<uint8_t> data = Input(self.rank(), bytes, 0);
      auto operation = self.Operation(OpKind::kBroadcast, "b", DType::kUInt8, {static_cast<int64_t>(bytes)},
                                      data.data(), data.data());
      operation->request.root = 1;
      CHECK(self.Run(std::move(operation)).ok());
      CHECK(data == Input(1, bytes, 0));
    }
  });
}
