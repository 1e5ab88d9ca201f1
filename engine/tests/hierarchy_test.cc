// SPDX-License-Identifier: Apache-2.0
// Collectives over hosts that hold several ranks, in whole worlds: every kind in every layout gives equal bits on all
// ranks, and each byte crosses to each other host once.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/whole_world.h"

using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

// Use the hierarchical algorithms for small messages too, and for sums over hosts with different numbers of ranks.
void WhereverPossible(hvd::Settings* settings) {
  settings->hierarchical_allgather = settings->hierarchical_allreduce = 1;
}

// Hosts of equal size: 2 x 2, 3 x 2, 2 x 3. Then 2 + 1, 3 + 2, 2 + 2 + 1 and 4 + 4 + 3, where fewer ranks exchange data
// between hosts than the largest host has.
const std::vector<Layout> kLayouts = {
    {4, 2, true, 8192, WhereverPossible},  {6, 3, true, 4096, WhereverPossible},  {6, 2, true, 4096, WhereverPossible},
    {4, 2, false, 4096, WhereverPossible}, {3, 2, true, 4096, WhereverPossible},  {5, 2, true, 4096, WhereverPossible},
    {5, 3, false, 4096, WhereverPossible}, {11, 3, true, 4096, WhereverPossible},
};

std::string Text(const Layout& layout) {
  return std::to_string(layout.ranks) + " ranks on " + std::to_string(layout.hosts) + " hosts, memory " +
         std::to_string(layout.memory);
}

int HostOf(const Layout& layout, int rank) { return rank * layout.hosts / layout.ranks; }

// Return element i of a rank's input: all values differ, and their sums need rounding.
template <typename T>
T Value(int rank, size_t i) {
  return static_cast<T>(static_cast<double>((i * 7 + static_cast<size_t>(rank) * 31) % 101) / 10.0 + rank);
}

// Return the sum of all ranks at i, added inside each host first.
template <typename T>
T SumByHost(const Layout& layout, size_t i) {
  T sum{}, host_sum{};
  bool first = true;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const bool begins = rank == 0 || HostOf(layout, rank) != HostOf(layout, rank - 1);
    host_sum = begins ? Value<T>(rank, i) : static_cast<T>(host_sum + Value<T>(rank, i));
    if (rank + 1 < layout.ranks && HostOf(layout, rank + 1) == HostOf(layout, rank)) continue;
    sum = first ? host_sum : static_cast<T>(sum + host_sum);
    first = false;
  }
  return sum;
}

int64_t RowsFor(int64_t rows, int rank, int size) { return rows / size + (rank < rows % size); }

template <typename T>
void CheckReducescatter(Rank& self, const Layout& layout, DType dtype, int64_t rows, int64_t width) {
  const int64_t mine = RowsFor(rows, self.rank(), self.size());
  int64_t before = 0;
  for (int r = 0; r < self.rank(); ++r) before += RowsFor(rows, r, self.size());
  std::vector<T> in(static_cast<size_t>(rows * width)), out(static_cast<size_t>(mine * width));
  for (size_t i = 0; i < in.size(); ++i) in[i] = Value<T>(self.rank(), i);
  const std::string name = "s" + std::to_string(static_cast<int>(dtype)) + "." + std::to_string(rows);
  for (int again = 0; again < 2; ++again) {
    std::fill(out.begin(), out.end(), T{});
    const hvd::Status status =
        self.Run(self.Operation<T>(OpKind::kReducescatter, name, dtype, {rows, width}, in.data(), out.data()));
    CHECK_MESSAGE(status.ok(), status.text);
    bool right = true;
    for (size_t i = 0; i < out.size(); ++i) {
      const T expected = SumByHost<T>(layout, static_cast<size_t>(before * width) + i);
      // Exact bits, because the order of additions depends on the hosts alone.
      right &= std::memcmp(&out[i], &expected, sizeof(T)) == 0;
    }
    CHECK_MESSAGE(right, name);
  }
}

}  // namespace

TEST_CASE("hierarchy: allgathers, ragged and fused") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      constexpr int kTensors = 6;
      const int n = self.size(), me = self.rank();
      auto rows_of = [](int tensor, int rank) {
        return (rank * 3 + tensor) % 4 * (tensor * 170 + 5);
      };  // some ranks have no rows
      for (int step = 0; step < 2; ++step) {
        std::vector<std::vector<int32_t>> in(kTensors);
        std::vector<int64_t> handles;
        for (int t = 0; t < kTensors; ++t) {
          const int rows = rows_of(t, me);
          for (int i = 0; i < rows * 3; ++i) in[t].push_back(me * 1000000 + t * 100000 + i);
          handles.push_back(self.Submit(self.Operation<int32_t>(OpKind::kAllgather, "g" + std::to_string(t),
                                                                DType::kInt32, {rows, 3}, in[t].data(), nullptr)));
        }
        for (int t = 0; t < kTensors; ++t) {
          const hvd::Status status = self.Wait(handles[t]);
          CHECK_MESSAGE(status.ok(), status.text);
          const auto handle = self.world().Find(handles[t]);
          const auto* gathered = static_cast<const int32_t*>(handle->outputs[0].data);
          bool right = true;
          for (int r = 0; r < n; ++r) {
            for (int i = 0; i < rows_of(t, r) * 3; ++i) right &= *gathered++ == r * 1000000 + t * 100000 + i;
          }
          CHECK(right);
          self.world().Release(handles[t]);
        }
      }
    });
  }
}

TEST_CASE("hierarchy: broadcasts from every root, alone and fused, in place and not") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      for (int root = 0; root < self.size(); ++root) {
        std::vector<std::vector<uint16_t>> in, out;
        std::vector<int64_t> handles;
        for (size_t count : {0, 1, 999, 5000, 70000}) {
          std::vector<uint16_t>& from = in.emplace_back(count);
          for (size_t i = 0; i < count; ++i) from[i] = static_cast<uint16_t>(i * 3 + static_cast<size_t>(self.rank()));
          std::vector<uint16_t>& to = out.emplace_back(from);
          auto operation =
              self.Operation<uint16_t>(OpKind::kBroadcast, "b" + std::to_string(count), DType::kUInt16,
                                       {static_cast<int64_t>(count)}, root % 2 ? from.data() : to.data(), to.data());
          operation->request.root = root;
          handles.push_back(self.Submit(std::move(operation)));
        }
        for (size_t t = 0; t < handles.size(); ++t) {
          const hvd::Status status = self.Wait(handles[t]);
          CHECK_MESSAGE(status.ok(), status.text);
          bool right = true;
          for (size_t i = 0; i < out[t].size(); ++i) right &= out[t][i] == static_cast<uint16_t>(i * 3 + root);
          CHECK(right);
          self.world().Release(handles[t]);
        }
      }
    });
  }
}

TEST_CASE("hierarchy: reducescatter adds inside hosts first, whatever the size and the type") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [&layout](Rank& self) {
      for (int64_t rows : {0, 1, 7, 100, 5000}) {
        CheckReducescatter<float>(self, layout, DType::kFloat32, rows, 3);
        CheckReducescatter<double>(self, layout, DType::kFloat64, rows, 1);
        CheckReducescatter<int64_t>(self, layout, DType::kInt64, rows, 2);
        CheckReducescatter<uint8_t>(self, layout, DType::kUInt8, rows, 5);
      }
    });
  }
}

TEST_CASE("hierarchy: reducescatter scales, averages and is fused") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      const int n = self.size();
      const int64_t rows = 401;
      const auto mine = static_cast<size_t>(RowsFor(rows, self.rank(), n)) * 8;
      const ReduceOp ops[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAverage};
      std::vector<std::vector<float>> in, out;
      std::vector<int64_t> handles;
      for (int t = 0; t < 4; ++t) {
        in.emplace_back(static_cast<size_t>(rows) * 8, static_cast<float>(self.rank() + t));
        out.emplace_back(mine, -1.0F);
        auto operation = self.Operation<float>(OpKind::kReducescatter, "o" + std::to_string(t), DType::kFloat32,
                                               {rows, 8}, in[t].data(), out[t].data());
        operation->request.op = ops[t];
        if (t == 2) operation->request.prescale = 0.5, operation->request.postscale = 4.0;
        handles.push_back(self.Submit(std::move(operation)));
      }
      const auto sum_of_ranks = static_cast<float>(n * (n - 1) / 2);
      const float expected[] = {sum_of_ranks / static_cast<float>(n), sum_of_ranks + static_cast<float>(n),
                                2 * (sum_of_ranks + 2 * static_cast<float>(n)),
                                sum_of_ranks / static_cast<float>(n) + 3};
      for (int t = 0; t < 4; ++t) {
        const hvd::Status status = self.Wait(handles[t]);
        CHECK_MESSAGE(status.ok(), status.text);
        const auto [low, high] = std::minmax_element(out[t].begin(), out[t].end());
        CHECK(*low == *high);
        CHECK(*low == doctest::Approx(expected[t]));
        self.world().Release(handles[t]);
      }
    });
  }
}

TEST_CASE("hierarchy: a deterministic reducescatter adds by rank") {
  Layout layout{4, 2, true, 4096, [](hvd::Settings* settings) { settings->deterministic = 1; }};
  RunWorld(layout, [](Rank& self) {
    std::vector<float> in(4000), out(1000);
    for (size_t i = 0; i < in.size(); ++i) in[i] = Value<float>(self.rank(), i);
    CHECK(self.Run(self.Operation<float>(OpKind::kReducescatter, "d", DType::kFloat32, {4000}, in.data(), out.data()))
              .ok());
    bool right = true;
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t at = static_cast<size_t>(self.rank()) * 1000 + i;
      float sum = Value<float>(0, at);
      for (int r = 1; r < 4; ++r) sum += Value<float>(r, at);
      right &= out[i] == sum;
    }
    CHECK(right);
  });
}

TEST_CASE("hierarchy: alltoalls, small enough to be joined and not, with rows for some and not for others") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(Text(layout));
    RunWorld(layout, [](Rank& self) {
      const int n = self.size(), me = self.rank();
      for (int scale : {0, 1, 9, 900}) {
        auto rows_of = [scale](int from, int to) { return int64_t{(from + 2 * to) % 3 * scale}; };
        std::vector<int64_t> splits, expected;
        std::vector<int32_t> in, right;
        for (int j = 0; j < n; ++j) {
          splits.push_back(rows_of(me, j));
          expected.push_back(rows_of(j, me));
          for (int64_t i = 0; i < splits.back(); ++i) in.push_back(me * 1000 + j);
          for (int64_t i = 0; i < expected.back(); ++i) right.push_back(j * 1000 + me);
        }
        auto operation = self.Operation<int32_t>(OpKind::kAlltoall, "a" + std::to_string(scale), DType::kInt32,
                                                 {static_cast<int64_t>(in.size())}, in.data(), nullptr);
        operation->request.splits = splits;
        const hvd::Status status = self.Run(std::move(operation));
        CHECK_MESSAGE(status.ok(), status.text);
        CHECK(self.last->received_splits == expected);
        const auto* got = static_cast<const int32_t*>(self.last->outputs[0].data);
        CHECK(std::equal(right.begin(), right.end(), got));
      }
    });
  }
}

namespace {

// Return the bytes that all ranks together send between hosts in one operation with `bytes` bytes on each rank.
uint64_t BytesAcross(const Layout& layout, OpKind kind, int64_t bytes) {
  std::atomic<uint64_t> all{0};
  RunWorld(layout, [&](Rank& self) {
    std::vector<uint8_t> in(static_cast<size_t>(bytes), 1), out(static_cast<size_t>(bytes) * 8);
    auto operation = self.Operation<uint8_t>(kind, "x", DType::kUInt8, {bytes}, in.data(),
                                             kind == OpKind::kAllgather ? nullptr : out.data());
    operation->request.root = self.size() - 1;
    const hvd::Status status = self.Run(std::move(operation));
    CHECK_MESSAGE(status.ok(), status.text);
    all += self.world().traffic().data_sent;
  });
  return all;
}

}  // namespace

TEST_CASE("hierarchy: every byte crosses once for each host") {
  constexpr int64_t kBytes = 300000;
  for (Layout layout : {Layout{4, 2}, Layout{6, 3}, Layout{6, 2}, Layout{5, 2}}) {
    CAPTURE(Text(layout));
    const auto ranks = static_cast<uint64_t>(layout.ranks), other_hosts = static_cast<uint64_t>(layout.hosts - 1);
    CHECK(BytesAcross(layout, OpKind::kAllgather, kBytes) == ranks * kBytes * other_hosts);
    CHECK(BytesAcross(layout, OpKind::kBroadcast, kBytes) == kBytes * other_hosts);
    layout.adjust = WhereverPossible;
    CHECK(BytesAcross(layout, OpKind::kReducescatter, kBytes) == kBytes * other_hosts);
    layout.adjust = [](hvd::Settings* settings) {
      settings->hierarchical_allgather = settings->hierarchical_allreduce = 0;
    };
    CHECK(BytesAcross(layout, OpKind::kBroadcast, kBytes) > kBytes * other_hosts);
  }
}
