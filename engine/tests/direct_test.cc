// SPDX-License-Identifier: Apache-2.0
// Tensors in engine-owned memory: results have the same bits as with staging, whichever ranks' tensors are shared, and
// the memory outlives its world.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "tests/whole_world.h"

using hvd::Code;
using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

// Return bytes that are finite numbers in every dtype, different on every rank.
std::vector<std::byte> Numbers(DType dtype, size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) * 977 + 5);
  std::vector<std::byte> bytes(count * hvd::SizeOf(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const size_t size = hvd::SizeOf(dtype);
  // Clear the top exponent bit, so that no number is infinite or NaN: their bits may differ.
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    for (size_t i = size - 1; i < bytes.size(); i += size) bytes[i] &= std::byte{0xbf};
  } else if (dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2) {
    for (std::byte& byte : bytes) byte &= std::byte{0xbb};
  }
  return bytes;
}

struct Case {
  DType dtype;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1, postscale = 1;
};

std::unique_ptr<hvd::Operation> Allreduce(Rank& self, const Case& wanted, const std::string& name, size_t count,
                                          std::byte* data) {
  auto operation = self.Operation(OpKind::kAllreduce, name, wanted.dtype, {static_cast<int64_t>(count)}, data, data);
  operation->request.op = wanted.op;
  operation->request.prescale = wanted.prescale;
  operation->request.postscale = wanted.postscale;
  return operation;
}

std::unique_ptr<hvd::Buffer> Allocate(Rank& self, size_t bytes) {
  hvd::Status status;
  std::unique_ptr<hvd::Buffer> buffer = self.world().Allocate(bytes, &status);
  CHECK_MESSAGE(status.ok(), status.text);
  return buffer;
}

int DirectBatches(Rank& self) {
  const std::string text = self.world().Describe(), key = "\"direct_batches\": ";
  return std::stoi(text.substr(text.find(key) + key.size()));
}

// Reduce the same numbers in shared and in ordinary memory, and compare the results.
void CheckSameBits(Rank& self, const Case& wanted, size_t count, std::byte* shared) {
  const std::vector<std::byte> numbers = Numbers(wanted.dtype, count, self.rank());
  std::vector<std::byte> plain = numbers;
  std::copy(numbers.begin(), numbers.end(), shared);
  for (std::byte* data : {plain.data(), shared}) {
    const std::string name = data == shared ? "shared" : "plain";
    hvd::Status status = self.Run(Allreduce(self, wanted, name + std::to_string(count), count, data));
    CHECK_MESSAGE(status.ok(), status.text);
  }
  CHECK(std::equal(plain.begin(), plain.end(), shared));
}

}  // namespace

TEST_CASE("direct: the same bits as with staging, for every dtype, operation and factor") {
  for (const Layout& layout : {Layout{2, 1, true, 4096}, Layout{3, 1, true, 8192}, Layout{4, 1, true, 8192}}) {
    CAPTURE(layout.ranks);
    RunWorld(layout, [](Rank& self) {
      auto buffer = Allocate(self, 300000);
      CHECK(buffer->shared());
      for (int dtype = 0; dtype < hvd::kDTypeCount; ++dtype) {
        const auto type = static_cast<DType>(dtype);
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          CheckSameBits(self, {type, op}, 3001, buffer->data());
        }
        if (type == DType::kBool) continue;
        CheckSameBits(self, {type, ReduceOp::kAverage}, 3001, buffer->data());
        CheckSameBits(self, {type, ReduceOp::kSum, 0.3, 0.7}, 1237, buffer->data());
      }
      for (size_t count : {0, 1, 21, 65, 70000}) CheckSameBits(self, {DType::kFloat32}, count, buffer->data());
      CHECK(DirectBatches(self) == hvd::kDTypeCount * 6 - 2 + 2);  // bool has two cases fewer; two sizes are not small
    });
  }
}

TEST_CASE("direct: fused with others, at other offsets on every rank") {
  for (const Layout& layout : {Layout{2, 1, true, 4096}, Layout{4, 1, true, 8192}}) {
    CAPTURE(layout.ranks);
    RunWorld(layout, [](Rank& self) {
      constexpr size_t kTensors = 20, kCount = 777;
      auto padding = Allocate(self, static_cast<size_t>(self.rank()) * 5000 + 1);
      auto buffer = Allocate(self, kTensors * kCount * sizeof(float) + 4096);
      std::vector<float> plain(kTensors * kCount);
      float* shared = reinterpret_cast<float*>(buffer->data()) + self.rank() * 3;
      for (int step = 0; step < 4; ++step) {
        std::vector<int64_t> handles;
        for (size_t i = 0; i < 2 * kTensors; ++i) {
          float* data = (i % 2 ? plain.data() : shared) + i / 2 * kCount;
          for (size_t k = 0; k < kCount; ++k)
            data[k] = static_cast<float>(i + k * static_cast<size_t>(self.rank() + step));
          handles.push_back(self.Submit(
              self.Operation(OpKind::kAllreduce, "f" + std::to_string(i), DType::kFloat32, {kCount}, data, data)));
        }
        for (int64_t handle : handles) CHECK(self.Wait(handle).ok());
        const size_t n = static_cast<size_t>(self.size()), ranks = n * (n - 1) / 2 + n * static_cast<size_t>(step);
        bool right = true;
        for (size_t i = 0; i < 2 * kTensors; ++i) {
          const float* data = (i % 2 ? plain.data() : shared) + i / 2 * kCount;
          for (size_t k = 0; k < kCount; ++k) right &= data[k] == static_cast<float>(i * n + k * ranks);
        }
        CHECK(right);
      }
      CHECK(DirectBatches(self) >= 4);
    });
  }
}

TEST_CASE("direct: one rank's tensor elsewhere, several hosts, no memory: all of it works") {
  for (const Layout& layout : {Layout{3, 1, true, 4096}, Layout{4, 2, true, 8192}, Layout{2, 1, false, 4096}}) {
    CAPTURE(layout.hosts);
    CAPTURE(layout.memory);
    RunWorld(layout, [&layout](Rank& self) {
      constexpr size_t kCount = 9001;
      auto buffer = Allocate(self, kCount * sizeof(double));
      CHECK(buffer->shared() == layout.memory);
      std::vector<double> plain(kCount);
      auto* shared = reinterpret_cast<double*>(buffer->data());
      // Alternate between the two kinds of memory under one name, so that descriptions in the cache change.
      for (int round = 0; round < 6; ++round) {
        double* data = round % 3 == 0 && self.rank() == 1 ? plain.data() : shared;
        std::fill_n(data, kCount, 1.0 + self.rank() + round);
        CHECK(self.Run(self.Operation(OpKind::kAllreduce, "m", DType::kFloat64, {kCount}, data, data)).ok());
        const double n = self.size();
        CHECK(data[0] == n * (n + 1) / 2 + n * round);
        CHECK(data[kCount - 1] == n * (n + 1) / 2 + n * round);
      }
      CHECK(DirectBatches(self) == (layout.hosts == 1 && layout.memory ? 4 : 0));
    });
  }
}

TEST_CASE("direct: a rank that has joined takes part with zeros, not with the memory it once named") {
  RunWorld({3, 1, true, 4096}, [](Rank& self) {
    constexpr size_t kCount = 5000;
    auto buffer = Allocate(self, kCount * sizeof(int64_t));
    auto* data = reinterpret_cast<int64_t*>(buffer->data());
    for (int round = 0; round < 4; ++round) {
      if (self.rank() == 2 && round >= 2) {
        std::fill_n(data, kCount, -7);
        CHECK(self.Run(self.Operation<char>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr)).ok());
        CHECK(std::all_of(data, data + kCount, [](int64_t value) { return value == -7; }));
        return;
      }
      std::fill_n(data, kCount, int64_t{1} << self.rank());
      CHECK(self.Run(self.Operation(OpKind::kAllreduce, "j", DType::kInt64, {kCount}, data, data)).ok());
      CHECK(data[kCount - 1] == (round < 2 ? 7 : 3));
    }
    CHECK(self.Run(self.Operation<char>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr)).ok());
  });
}

TEST_CASE("direct: a rank that leaves in the middle fails it by name") {
  std::atomic<int> failed{0};
  RunWorld({3, 1, true, 4096}, [&failed](Rank& self) {
    auto buffer = Allocate(self, 1 << 20);
    auto* data = reinterpret_cast<float*>(buffer->data());
    auto operation = [&] { return self.Operation(OpKind::kAllreduce, "d", DType::kFloat32, {1 << 18}, data, data); };
    CHECK(self.Run(operation()).ok());
    if (self.rank() == 2) return;  // leaving the function closes this rank's world
    hvd::Status status = self.Run(operation());
    CHECK(status.code == Code::kFailed);
    CHECK(status.text.find("rank 2") != std::string::npos);
    ++failed;
    while (failed < 2) std::this_thread::yield();  // if this rank left first, the other one might name it instead
    self.world().Close();
    data[(1 << 18) - 1] = 5;  // this rank may still use the memory
    CHECK(data[(1 << 18) - 1] == 5);
    hvd::Status refused;
    CHECK(self.world().Allocate(10, &refused) == nullptr);
    CHECK(refused.code == Code::kFailed);
  });
}

TEST_CASE("buffers: outlive their world, come back zeroed, and stay readable in a forked child") {
  std::unique_ptr<hvd::Buffer> survivor;
  RunWorld({2, 1, true, 4096}, [&survivor](Rank& self) {
    auto kept = Allocate(self, 10000);
    std::memset(kept->data(), 'k', 10000);
    std::byte* first = nullptr;
    for (int round = 0; round < 3; ++round) {
      auto buffer = Allocate(self, 50000);
      CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % 4096 == 0);
      if (round == 0) first = buffer->data();
      CHECK(buffer->data() == first);  // freed memory is used again
      CHECK(std::all_of(first, first + 50000, [](std::byte byte) { return byte == std::byte{0}; }));
      std::memset(first, 1, 50000);
    }
    if (self.rank() == 0) survivor = std::move(kept);
  });
  CHECK(survivor->data()[9999] == std::byte{'k'});
  const pid_t child = fork();
  if (child == 0) _exit(survivor->data()[9999] == std::byte{'k'} ? 0 : 1);
  int outcome = -1;
  CHECK(waitpid(child, &outcome, 0) == child);
  CHECK(outcome == 0);
}
