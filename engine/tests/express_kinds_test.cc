// SPDX-License-Identifier: Apache-2.0
// Every collective on the fast path without the leader, in each way that ranks send their parts: inside messages, in
// shared buffers, and written into the other ranks' outputs. Also what happens when ranks disagree, leave, or use
// several threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "memory/express_memory.h"
#include "tests/repeats.h"
#include "tests/whole_world.h"

using hvd::Code;
using hvd::DType;
using hvd::ExpressHead;
using hvd::ExpressMemory;
using hvd::OpKind;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

void UseUsualSizes(hvd::Settings* settings) { settings->small_bytes = size_t{64} << 10; }

const std::vector<Layout> kLayouts = {
    {2, 1, true, 4096, UseUsualSizes}, {2, 1, false, 4096, UseUsualSizes},
    {3, 1, true, 8192, UseUsualSizes}, {3, 3, true, 4096, UseUsualSizes},
    {4, 2, true, 4096, UseUsualSizes}, {3, 2, true, 4096, UseUsualSizes},  // hosts with two ranks and with one
    {6, 3, true, 4096, UseUsualSizes}, {4, 2, false, 4096, UseUsualSizes},
};
// Layouts for tests in which ranks leave: without and with ranks that forward other ranks' parts.
const std::vector<Layout> kToLeave = {{3, 1, true, 8192, UseUsualSizes}, {5, 3, true, 8192, UseUsualSizes}};
const std::vector<OpKind> kKinds = {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall,
                                    OpKind::kReducescatter};

uint64_t Runs(Rank& self) {
  const std::string told = self.world().Describe(), key = "\"express_runs\": ";
  return std::stoull(told.substr(told.find(key) + key.size()));
}

int64_t Value(int rank, size_t i, int step) { return rank * 1000003 + static_cast<int64_t>(i) * 7 + step * 31; }

// One call of a collective. Sizes differ: in an allgather rank r has `rows + r` rows; in an alltoall each pair of ranks
// has its own number of rows.
struct Trial {
  OpKind kind;
  size_t rows;
  int step;

  size_t RowsOf(int rank) const { return kind == OpKind::kAllgather ? rows + static_cast<size_t>(rank) : rows; }
  size_t Split(int from, int to) const { return rows + static_cast<size_t>(2 * from + to); }
  int root(int size) const { return static_cast<int>(rows) % size; }
  std::string name() const { return "kind" + std::to_string(static_cast<int>(kind)) + "." + std::to_string(rows); }

  std::vector<int64_t> Input(Rank& self) const {
    size_t count = RowsOf(self.rank());
    if (kind == OpKind::kAlltoall) {
      count = 0;
      for (int to = 0; to < self.size(); ++to) count += Split(self.rank(), to);
    }
    std::vector<int64_t> input(count);
    for (size_t i = 0; i < count; ++i) input[i] = Value(self.rank(), i, step);
    return input;
  }

  std::vector<int64_t> Expected(Rank& self) const {
    std::vector<int64_t> all;
    size_t begin = 0, count = rows;
    if (kind == OpKind::kBroadcast) {
      for (size_t i = 0; i < rows; ++i) all.push_back(Value(root(self.size()), i, step));
      return all;
    }
    for (int from = 0; from < self.size() && (kind == OpKind::kAllgather || kind == OpKind::kAlltoall); ++from) {
      begin = 0;
      for (int to = 0; kind == OpKind::kAlltoall && to < self.rank(); ++to) begin += Split(from, to);
      count = kind == OpKind::kAlltoall ? Split(from, self.rank()) : RowsOf(from);
      for (size_t i = 0; i < count; ++i) all.push_back(Value(from, begin + i, step));
    }
    if (!all.empty()) return all;
    if (kind == OpKind::kReducescatter) {
      const auto size = static_cast<size_t>(self.size()), me = static_cast<size_t>(self.rank());
      begin = rows / size * me + std::min(me, rows % size);
      count = rows / size + (me < rows % size);
    }
    for (size_t i = begin; i < begin + count; ++i) {
      int64_t sum = 0;
      for (int rank = 0; rank < self.size(); ++rank) sum += Value(rank, i, step);
      all.push_back(sum);
    }
    return all;
  }

  std::unique_ptr<hvd::Operation> Make(Rank& self, const std::vector<int64_t>& input, int64_t* output) const {
    const bool leaves_output = kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
    auto operation = self.Operation(kind, name(), DType::kInt64, {static_cast<int64_t>(input.size())}, input.data(),
                                    leaves_output ? nullptr : output);
    if (kind == OpKind::kBroadcast) operation->request.root = root(self.size());
    for (int to = 0; kind == OpKind::kAlltoall && to < self.size(); ++to) {
      operation->request.splits.push_back(static_cast<int64_t>(Split(self.rank(), to)));
    }
    return operation;
  }

  void Check(Rank& self, bool wait = true) const {
    const std::vector<int64_t> input = Input(self), expected = Expected(self);
    std::vector<int64_t> output(expected.size());
    // The result may lie in the input. That of a reducescatter lies where this rank's share begins.
    const bool in_place = step % 2 == 1 && kind != OpKind::kAllgather && kind != OpKind::kAlltoall;
    const auto size = static_cast<size_t>(self.size()), me = static_cast<size_t>(self.rank());
    const size_t begin = kind == OpKind::kReducescatter ? rows / size * me + std::min(me, rows % size) : 0;
    if (in_place) output = input;
    int64_t* const result = output.data() + (in_place ? begin : 0);
    const int64_t handle = self.Submit(Make(self, in_place ? output : input, result), wait);
    const hvd::Status status = self.Wait(handle);
    CHECK_MESSAGE(status.ok(), status.text);
    if (!status.ok()) return self.world().Release(handle);
    const auto done = self.world().Find(handle);
    const void* made = done->outputs[0].data;
    const auto* got = made ? static_cast<const int64_t*>(made) : result;
    CHECK_MESSAGE(std::equal(expected.begin(), expected.end(), got), name());
    if (kind == OpKind::kAlltoall) {
      CHECK(done->received_splits[0] == static_cast<int64_t>(Split(0, self.rank())));
    }
    self.world().Release(handle);
  }
};

// Rows that travel inside messages, in shared buffers, and straight into outputs (4 KB to 25 KB for each rank).
const std::vector<size_t> kRows = {2, 500, 3100};
constexpr size_t kMoreThanACell = 30;

}  // namespace

TEST_CASE("express memory: a buffer is free when everybody has said that it is done with it") {
  std::vector<std::byte> memory(3 * ExpressMemory::kBytes + 64);
  auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::vector<ExpressHead*> heads;
  for (size_t j = 0; j < 3; ++j) heads.push_back(new (base + j * ExpressMemory::kBytes) ExpressHead);
  ExpressMemory mine(heads, 1), theirs(heads, 0);
  std::byte* const first = mine.FreeBuffer();
  CHECK(mine.NextNumber(true) == 1);
  std::byte* const second = mine.FreeBuffer();
  CHECK(mine.NextNumber(true) == 2);
  CHECK(std::abs(second - first) == static_cast<std::ptrdiff_t>(ExpressMemory::kBufferBytes));
  CHECK(mine.FreeBuffer() == nullptr);
  mine.Acknowledged(0, 2);
  CHECK(mine.FreeBuffer() == nullptr);
  mine.Acknowledged(2, 1);
  CHECK(mine.FreeBuffer() == nullptr);
  mine.Gone(1, 1);  // this rank has finished with the buffer too
  CHECK(mine.FreeBuffer() == first);
  CHECK(mine.NextNumber(false) == 3);  // number 3 uses no buffer
  CHECK(mine.FreeBuffer() == nullptr);
  mine.Acknowledged(2, 3);
  mine.Gone(1, 3);
  CHECK(mine.FreeBuffer() == nullptr);
  mine.Gone(1, 2);
  CHECK(mine.FreeBuffer() == second);

  CHECK(theirs.GoneUpTo(1) == 0);
  theirs.Came(1, 1);
  theirs.Came(1, 2);
  CHECK(theirs.GoneUpTo(1) == 0);
  theirs.Gone(1, 2);
  CHECK(theirs.GoneUpTo(1) == 0);
  theirs.Gone(1, 1);
  CHECK(theirs.GoneUpTo(1) == 2);
  CHECK_FALSE(theirs.HasDelivered(1, 3));
  mine.Deliver(3);
  CHECK(theirs.HasDelivered(1, 3));
}

TEST_CASE("world: every kind goes express once its description is known") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [&](Rank& self) {
      for (OpKind kind : kKinds) {
        for (size_t rows : {kRows[0], kMoreThanACell, kRows[1], kRows[2]}) {
          const uint64_t before = Runs(self);
          for (int step = 0; step < 6; ++step) Trial{kind, rows, step}.Check(self);
          // The first call sends the description. An output moves into shared memory when its size comes for the second
          // time.
          const bool in_memory = layout.memory && layout.hosts == 1;
          const uint64_t least = in_memory ? 3 : rows == kRows[0] ? 5 : 0;
          CHECK_MESSAGE(Runs(self) - before >= least, Trial{kind, rows, 0}.name());
        }
      }
    });
  }
}

TEST_CASE("world: on hosts with several ranks a sum has the same bits express, by record and as part of a large one") {
  RunWorld({4, 2, true, 4096, UseUsualSizes}, [](Rank& self) {
    constexpr size_t kFew = 64, kMany = 100000;
    std::mt19937 random(static_cast<unsigned>(self.rank()) + 1);
    std::uniform_real_distribution<float> values(-1, 1);
    std::vector<float> input(kMany), large(kMany), small(kFew), alone(kFew);
    for (float& value : input) value = values(random) * (random() % 2 ? 1e6F : 1.0F);
    const auto allreduce = [&](const std::string& name, std::vector<float>* output, bool wait) {
      const auto count = static_cast<int64_t>(output->size());
      const int64_t handle = self.Submit(
          self.Operation(OpKind::kAllreduce, name, DType::kFloat32, {count}, input.data(), output->data()), wait);
      CHECK(self.Wait(handle).ok());
      self.world().Release(handle);
    };
    allreduce("large", &large, true);
    allreduce("small", &small, false);
    const uint64_t before = Runs(self);
    allreduce("small", &alone, true);
    CHECK(Runs(self) == before + 1);
    CHECK(std::equal(small.begin(), small.end(), large.begin()));
    CHECK(std::equal(alone.begin(), alone.end(), large.begin()));
  });
}

TEST_CASE("world: every kind, each rank in the way it likes") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      std::mt19937 random(static_cast<unsigned>(self.rank()) + 5);
      for (int step = 0; step < 300; ++step) {
        const Trial trial{kKinds[static_cast<size_t>(step) % kKinds.size()], kRows[static_cast<size_t>(step / 7) % 3],
                          step};
        trial.Check(self, random() % 4 != 0);
      }
    });
  }
}

TEST_CASE("world: every kind from several threads at once") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      std::vector<std::thread> threads;
      for (OpKind kind : kKinds) {
        threads.emplace_back([&self, kind] {
          Rank own(&self.world(), self.rank(), self.size());
          for (int step = 0; step < 40; ++step) Trial{kind, kRows[static_cast<size_t>(step) % 3], step}.Check(own);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

TEST_CASE("world: ranks whose threads crossed go express again") {
  RunWorld({2, 1, true, 8192, UseUsualSizes}, [](Rank& self) {
    const Trial one{OpKind::kAllreduce, 500, 0}, other{OpKind::kAllreduce, 501, 0};
    for (int repeat = 0; repeat < 30; ++repeat) {
      std::vector<std::thread> threads;
      for (const Trial* trial : {self.rank() ? &one : &other, self.rank() ? &other : &one}) {
        threads.emplace_back([&self, trial] {
          Rank own(&self.world(), self.rank(), self.size());
          trial->Check(own);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    const uint64_t before = Runs(self);
    for (int repeat = 0; repeat < 10; ++repeat) one.Check(self);
    CHECK(Runs(self) - before >= 8);
  });
}

// A rank that has received all parts of a tensor may continue with others, which take over its slot while another rank
// still lacks a part. It may also leave.
TEST_CASE("world: tensors lose their slots to others while their parts are on their way") {
  const auto few_slots = [](hvd::Settings* settings) {
    UseUsualSizes(settings);
    settings->cache_capacity = 2;
  };
  const auto work = [](Rank& self) {
    std::vector<std::thread> threads;
    for (size_t number = 0; number < 4; ++number) {
      threads.emplace_back([&self, number] {
        Rank own(&self.world(), self.rank(), self.size());
        for (int step = 0; step < 100; ++step) {
          Trial{OpKind::kAllreduce, 2 + number + 4 * static_cast<size_t>(step / 5 % 3), step}.Check(own);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (const Layout& layout : {Layout{4, 2, true, 4096, few_slots}, Layout{3, 3, true, 4096, few_slots}}) {
    RunWorld(layout, work);
  }
}

TEST_CASE("world: who leaves after its last collective leaves nobody without it, though it has lost its slot") {
  const auto one_slot = [](hvd::Settings* settings) {
    UseUsualSizes(settings);
    settings->cache_capacity = 1;
  };
  for (const Layout& layout : {Layout{3, 3, true, 4096, one_slot}, Layout{4, 2, true, 4096, one_slot}}) {
    for (unsigned repeat = 0; repeat < hvd::Repeats(20); ++repeat) {
      RunWorld(layout, [](Rank& self) {
        std::vector<std::thread> threads;
        for (size_t number = 0; number < 3; ++number) {
          threads.emplace_back([&self, number] {
            Rank own(&self.world(), self.rank(), self.size());
            for (int step = 0; step < 4; ++step) Trial{OpKind::kAllreduce, 2 + number, step}.Check(own);
          });
        }
        for (std::thread& thread : threads) thread.join();
      });
    }
  }
}

TEST_CASE("world: every kind fails on all ranks when one differs, and works afterwards") {
  for (const Layout& layout : kLayouts) {
    RunWorld(layout, [](Rank& self) {
      for (OpKind kind : kKinds) {
        for (size_t rows : kRows) {
          for (int step = 0; step < 4; ++step) Trial{kind, rows, step}.Check(self);
          for (int step = 0; step < 4; ++step) {
            const Trial trial{kind, rows, step};
            std::vector<int64_t> input = trial.Input(self), output(input.size() * 4);
            auto operation = trial.Make(self, input, output.data());
            if (self.rank() == self.size() - 1) operation->request.dtype = DType::kUInt64;
            CHECK(self.Run(std::move(operation)).code == Code::kMismatch);
            trial.Check(self);
          }
        }
      }
    });
  }
}

TEST_CASE("world: who leaves after its last collective leaves nobody without it") {
  for (const Layout& layout : kToLeave) {
    for (int number = 0; number < layout.ranks * static_cast<int>(kKinds.size()); ++number) {
      const OpKind kind = kKinds[static_cast<size_t>(number) % kKinds.size()];
      const int leaver = number / static_cast<int>(kKinds.size());
      RunWorld(layout, [kind, leaver](Rank& self) {
        const size_t rows = kRows[static_cast<size_t>(leaver + static_cast<int>(kind)) % 3];
        for (int step = 0; step < 5; ++step) Trial{kind, rows, step}.Check(self);
        if (self.rank() == leaver) return;
        const Trial trial{kind, rows, 5};
        std::vector<int64_t> input = trial.Input(self), output(input.size() * 4);
        CHECK(self.Run(trial.Make(self, input, output.data())).code == Code::kFailed);
      });
    }
  }
}

TEST_CASE("world: all leave after their last collective, which all of them have") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    RunWorld({6, 3, true, 4096, UseUsualSizes}, [repeat](Rank& self) {
      const Trial trial{kKinds[static_cast<size_t>(repeat) % kKinds.size()], kRows[0], repeat};
      for (int step = 0; step < 3 + repeat % 3; ++step) trial.Check(self);
    });
  }
}

TEST_CASE("world: who leaves in the middle of a collective does not keep the others waiting") {
  for (const Layout& layout : kToLeave) {
    for (int number = 0; number < 2 * layout.ranks * static_cast<int>(kKinds.size()); ++number) {
      const OpKind kind = kKinds[static_cast<size_t>(number) % kKinds.size()];
      const int repeat = number / static_cast<int>(kKinds.size());
      RunWorld(layout, [kind, repeat](Rank& self) {
        const size_t rows = repeat < self.size() ? kRows[0] : kRows[static_cast<size_t>(1 + repeat % 2)];
        std::atomic<int> step{0};
        std::thread leaver;
        if (self.rank() == repeat % self.size()) {
          leaver = std::thread([&] {
            while (step < 30) std::this_thread::yield();
            self.world().Close();
          });
        }
        hvd::Status status;
        for (; status.ok(); ++step) {  // until the departure makes a call fail
          const Trial trial{kind, rows, step};
          std::vector<int64_t> input = trial.Input(self), output(input.size() * 4);
          status = self.Run(trial.Make(self, input, output.data()));
        }
        CHECK_MESSAGE(status.code == Code::kFailed, status.text);
        if (leaver.joinable()) leaver.join();
      });
    }
  }
}

TEST_CASE(
    "world: who has told its part and leaves, though it would have passed on those of others, keeps nobody waiting") {
  std::atomic<bool> left{false};
  RunWorld({4, 2, true, 4096, UseUsualSizes}, [&left](Rank& self) {
    const Trial trial{OpKind::kAllreduce, kRows[0], 0};
    for (int step = 0; step < 4; ++step) trial.Check(self);
    std::vector<int64_t> input = trial.Input(self), output(input.size());
    if (self.rank() == 2) {  // rank 2 forwards parts for the second host
      const int64_t handle = self.Submit(trial.Make(self, input, output.data()), true);
      hvd::Status status;
      CHECK(self.world().Wait(handle, 50, &status) == Code::kInProgress);
      self.world().Close();
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    CHECK(self.Run(trial.Make(self, input, output.data())).code == Code::kFailed);
  });
}

TEST_CASE("world: what is still queued when a rank leaves is told to nobody") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> called{0};
    RunWorld({4, 2, true, 4096, UseUsualSizes}, [&called](Rank& self) {
      const Trial trial{OpKind::kAllreduce, kRows[0], 0};
      for (int step = 0; step < 3; ++step) trial.Check(self);
      std::vector<int64_t> input = trial.Input(self), output(input.size());
      if (self.rank() == 2) {  // rank 2 forwards parts for the second host
        while (called < 3) std::this_thread::yield();
        self.Submit(trial.Make(self, input, output.data()), true);
        return self.world().Close();  // while the tensor's memory still exists
      }
      ++called;
      const hvd::Status status = self.Run(trial.Make(self, input, output.data()));
      if (status.ok()) {  // the part had been sent before
        CHECK(output == trial.Expected(self));
      } else {
        CHECK_MESSAGE(status.code == Code::kFailed, status.text);
      }
    });
  }
}
