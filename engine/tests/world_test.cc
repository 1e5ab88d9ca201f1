// SPDX-License-Identifier: Apache-2.0
// Whole worlds inside one process, one thread for each rank: every collective over shared memory and sockets.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/whole_world.h"

using hvd::Code;
using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

const std::vector<Layout> kLayouts = {
    {1, 1, true, 4096}, {2, 1, true, 4096},  {2, 1, false, 4096}, {3, 1, true, 8192},
    {4, 2, true, 8192}, {4, 2, false, 8192}, {3, 3, true, 4096},
};

std::string Text(const Layout& layout) {
  return std::to_string(layout.ranks) + " ranks on " + std::to_string(layout.hosts) + " hosts, memory " +
         std::to_string(layout.memory);
}

}  // namespace

TEST_CASE("world: allreduce of every size, in place and not") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      for (size_t count : {0, 1, 60, 1000, 5000, 20000}) {
        std::vector<int64_t> in(count), out(count);
        for (size_t i = 0; i < count; ++i) in[i] = static_cast<int64_t>(i) * (self.rank() + 1);
        const int64_t factor = self.size() * (self.size() + 1) / 2;
        const std::string name = "x" + std::to_string(count);
        for (int round = 0; round < 3; ++round) {  // the second round comes from the cache
          hvd::Status status = self.Run(self.Operation(OpKind::kAllreduce, name, DType::kInt64,
                                                       {static_cast<int64_t>(count)}, in.data(), out.data()));
          CHECK_MESSAGE(status.ok(), status.text);
          bool right = true;
          for (size_t i = 0; i < count; ++i) right &= out[i] == static_cast<int64_t>(i) * factor;
          CHECK(right);
        }
      }
    });
  }
}

TEST_CASE("world: many tensors in flight, submitted in different orders") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      constexpr int kTensors = 50;
      std::vector<std::vector<float>> data(kTensors, std::vector<float>(100));
      for (int step = 0; step < 5; ++step) {
        std::vector<int64_t> handles(kTensors);
        for (int i = 0; i < kTensors; ++i) {
          const int forward = (i + 7 * self.rank() * step) % kTensors;
          const int tensor = self.rank() % 2 ? kTensors - 1 - forward : forward;
          for (float& value : data[tensor]) value = static_cast<float>(tensor + self.rank());
          handles[tensor] =
              self.Submit(self.Operation(OpKind::kAllreduce, "t" + std::to_string(tensor), DType::kFloat32, {100},
                                         data[tensor].data(), data[tensor].data()));
          CHECK(handles[tensor] > 0);
        }
        for (int i = 0; i < kTensors; ++i) {
          hvd::Status status = self.Wait(handles[i]);
          CHECK_MESSAGE(status.ok(), status.text);
          CHECK(data[i][99] == static_cast<float>(i * self.size() + self.size() * (self.size() - 1) / 2));
          self.world().Release(handles[i]);
        }
      }
    });
  }
}

TEST_CASE("world: allgather, broadcast, alltoall, reducescatter, barrier") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      const int n = self.size(), me = self.rank();
      // Ragged allgather: rank r brings r * 700 rows of two elements.
      std::vector<int32_t> in(static_cast<size_t>(me) * 1400, me);
      auto gather = self.Operation<int32_t>(OpKind::kAllgather, "g", DType::kInt32, {me * 700, 2}, in.data(), nullptr);
      CHECK(self.Run(std::move(gather)).ok());
      CHECK(self.last->outputs[0].rows == 700 * n * (n - 1) / 2);
      const auto* gathered = static_cast<const int32_t*>(self.last->outputs[0].data);
      bool right = true;
      for (int r = 0, at = 0; r < n; ++r) {
        for (int i = 0; i < r * 1400; ++i) right &= gathered[at++] == r;
      }
      CHECK(right);

      for (int root = 0; root < n; ++root) {
        std::vector<double> value(3000, me == root ? root + 0.5 : -1.0);
        auto broadcast =
            self.Operation<double>(OpKind::kBroadcast, "b", DType::kFloat64, {3000}, value.data(), value.data());
        broadcast->request.root = root;
        CHECK(self.Run(std::move(broadcast)).ok());
        CHECK(value[2999] == root + 0.5);
      }

      // Rank r sends (j + 1) * 600 rows to rank j.
      std::vector<int64_t> splits;
      int64_t rows = 0;
      for (int j = 0; j < n; ++j) rows += splits.emplace_back((j + 1) * 600);
      std::vector<uint8_t> letters(static_cast<size_t>(rows), static_cast<uint8_t>(me + 1));
      auto exchange = self.Operation<uint8_t>(OpKind::kAlltoall, "a", DType::kUInt8, {rows}, letters.data(), nullptr);
      exchange->request.splits = splits;
      CHECK(self.Run(std::move(exchange)).ok());
      CHECK(self.last->received_splits == std::vector<int64_t>(n, (me + 1) * 600));
      const auto* received = static_cast<const uint8_t*>(self.last->outputs[0].data);
      for (int j = 0; j < n; ++j) CHECK(received[j * (me + 1) * 600] == j + 1);

      const int64_t height = 5 * n + 1;  // uneven: rank 0 gets one row more
      std::vector<float> matrix(static_cast<size_t>(height) * 300);
      for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i % 300 + me);
      std::vector<float> share(static_cast<size_t>(me == 0 ? 6 : 5) * 300);
      auto scatter = self.Operation<float>(OpKind::kReducescatter, "s", DType::kFloat32, {height, 300}, matrix.data(),
                                           share.data());
      CHECK(self.Run(std::move(scatter)).ok());
      CHECK(share.back() == static_cast<float>(299 * n + n * (n - 1) / 2));
      CHECK(self.Run(self.Operation<float>(OpKind::kBarrier, "barrier", DType::kUInt8, {}, nullptr, nullptr)).ok());
    });
  }
}

TEST_CASE("world: a mismatch fails on every rank and the engine goes on") {
  RunWorld({3, 1, true, 4096}, [](Rank& self) {
    std::vector<float> data(10, 1.0f);
    auto odd = self.Operation<float>(OpKind::kAllreduce, "m", DType::kFloat32, {self.rank() == 2 ? 5 : 10}, data.data(),
                                     data.data());
    hvd::Status status = self.Run(std::move(odd));
    CHECK(status.code == Code::kMismatch);
    CHECK(status.text.find("Mismatched ALLREDUCE tensor shapes") == 0);
    CHECK(
        self.Run(self.Operation<float>(OpKind::kAllreduce, "m", DType::kFloat32, {10}, data.data(), data.data())).ok());
    CHECK(data[9] == 3.0f);
  });
}

TEST_CASE("world: point to point, both ways at once, any order of tags") {
  for (const Layout& layout : {Layout{2, 1, true, 4096}, Layout{2, 1, false, 4096}, Layout{3, 1, true, 4096}}) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      const int to = (self.rank() + 1) % self.size(), from = (self.rank() + self.size() - 1) % self.size();
      std::vector<std::vector<char>> out, in;
      std::vector<int64_t> handles;
      for (int tag = 0; tag < 6; ++tag) {
        out.emplace_back(static_cast<size_t>(tag) * 9000, static_cast<char>('a' + tag + self.rank()));
        in.emplace_back(static_cast<size_t>(tag) * 9000);
      }
      auto transfer = [&](OpKind kind, int peer, int tag, std::vector<char>& data) {
        auto operation = self.Operation<char>(kind, "p2p" + std::to_string(handles.size()), DType::kUInt8,
                                              {static_cast<int64_t>(data.size())}, data.data(), data.data());
        operation->request.root = peer;
        operation->request.splits = {tag};
        handles.push_back(self.Submit(std::move(operation)));
      };
      for (int tag = 0; tag < 6; ++tag) transfer(OpKind::kSend, to, tag, out[tag]);
      for (int tag = 5; tag >= 0; --tag) transfer(OpKind::kReceive, from, tag, in[tag]);
      for (int64_t handle : handles) CHECK(self.Wait(handle).ok());
      for (int tag = 1; tag < 6; ++tag) CHECK(in[tag].back() == static_cast<char>('a' + tag + from));
    });
  }
}

TEST_CASE("world: who leaves without waiting for its messages keeps nobody waiting") {
  for (size_t bytes : {size_t{10}, size_t{20'000'000}}) {
    for (int repeat = 0; repeat < 6; ++repeat) {
      std::atomic<bool> matched{false};
      RunWorld({2, 1, true, 4096}, [&](Rank& self) {
        std::vector<char> data(bytes, static_cast<char>('a' + self.rank()));
        const auto transfer = [&](OpKind kind) {
          auto operation = self.Operation<char>(kind, "message", DType::kUInt8, {static_cast<int64_t>(bytes)},
                                                data.data(), data.data());
          operation->request.root = 1 - self.rank();
          operation->request.splits = {0};
          return self.Submit(std::move(operation));
        };
        if (self.rank() == 0) {
          transfer(OpKind::kSend);
          while (repeat % 2 && !matched) std::this_thread::yield();
          return self.world().Close();
        }
        const int64_t handle = transfer(OpKind::kReceive);
        matched = true;
        const hvd::Status status = self.Wait(handle);
        if (status.ok()) {
          CHECK(data == std::vector<char>(bytes, 'a'));
        } else {
          CHECK_MESSAGE(status.code == Code::kFailed, status.text);
        }
      });
    }
  }
}

TEST_CASE("world: process sets come and go, and run beside each other") {
  RunWorld({4, 1, true, 4096}, [](Rank& self) {
    for (int round = 0; round < 3; ++round) {
      std::vector<int> ids;
      for (int parity = 0; parity < 2; ++parity) {
        auto add = self.Operation<char>(OpKind::kAddProcessSet, "add", DType::kUInt8, {}, nullptr, nullptr);
        add->request.splits = {parity, parity + 2};
        CHECK(self.Run(std::move(add)).ok());
        ids.push_back(static_cast<int>(self.last->value));
      }
      CHECK(ids == std::vector<int>{1, 2});
      std::vector<int32_t> data(3000, self.rank() + 1);
      auto operation =
          self.Operation<int32_t>(OpKind::kAllreduce, "x", DType::kInt32, {3000}, data.data(), data.data());
      operation->process_set = ids[self.rank() % 2];
      CHECK(self.Run(std::move(operation)).ok());
      CHECK(data[2999] == (self.rank() % 2 ? 6 : 4));
      auto foreign = self.Operation<int32_t>(OpKind::kAllreduce, "y", DType::kInt32, {1}, data.data(), data.data());
      foreign->process_set = ids[1 - self.rank() % 2];
      CHECK(self.Run(std::move(foreign)).code == Code::kInvalid);
      for (int id : ids) {
        auto remove = self.Operation<char>(OpKind::kRemoveProcessSet, "remove", DType::kUInt8, {}, nullptr, nullptr);
        remove->request.splits = {id};
        CHECK(self.Run(std::move(remove)).ok());
      }
    }
  });
}

TEST_CASE("world: a rank that leaves fails what needs it, by name") {
  std::atomic<int> failed{0};
  RunWorld({3, 1, true, 4096}, [&failed](Rank& self) {
    std::vector<float> data(10, 1.0f);
    if (self.rank() == 2) return;  // leaving the function closes this rank's world
    hvd::Status status =
        self.Run(self.Operation<float>(OpKind::kAllreduce, "late", DType::kFloat32, {10}, data.data(), data.data()));
    CHECK(status.code == Code::kFailed);
    CHECK(status.text.find("rank 2") != std::string::npos);
    CHECK(status.text.find("Horovod has been shut down") == 0);
    ++failed;
    while (failed < 2) std::this_thread::yield();  // if this rank left first, the other one might name it instead
  });
}
