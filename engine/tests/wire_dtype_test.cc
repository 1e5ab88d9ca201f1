// SPDX-License-Identifier: Apache-2.0
// Allreduces of float32 that travel as a half type have the bits that rounding the tensors, reducing the halves and
// widening the result gives. Tested over shared memory, sockets and hosts, and on every rank.
#include <hvd/engine.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>

#include "base/half.h"
#include "tests/whole_world.h"

using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

struct Case {
  DType half;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1, postscale = 1;
};

uint16_t Rounded(DType half, float value) {
  return half == DType::kFloat16 ? hvd::Float16FromFloat(value) : hvd::BFloat16FromFloat(value);
}
float Exact(DType half, uint16_t bits) {
  return half == DType::kFloat16 ? hvd::FloatFromFloat16(bits) : hvd::FloatFromBFloat16(bits);
}

std::vector<float> Numbers(size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) * 31 + 1);
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    number = std::ldexp(static_cast<float>(static_cast<int32_t>(random())) / 2147483648.0f,
                        static_cast<int>(random() % 24) - 12);
  }
  return numbers;
}

template <typename T>
std::unique_ptr<hvd::Operation> Allreduce(Rank& self, const Case& wanted, const std::string& name, DType dtype,
                                          const std::vector<T>& in, std::vector<T>* out) {
  auto operation =
      self.Operation(OpKind::kAllreduce, name, dtype, {static_cast<int64_t>(in.size())}, in.data(), out->data());
  operation->request.op = wanted.op;
  operation->request.prescale = wanted.prescale;
  operation->request.postscale = wanted.postscale;
  return operation;
}

// Return the result of a reduction of halves, rounded and widened by the test.
std::vector<float> Expected(Rank& self, const Case& wanted, const std::string& name,
                            const std::vector<float>& numbers) {
  std::vector<uint16_t> halves;
  for (float number : numbers) halves.push_back(Rounded(wanted.half, number));
  const hvd::Status status = self.Run(Allreduce(self, wanted, name + ".half", wanted.half, halves, &halves));
  CHECK_MESSAGE(status.ok(), status.text);
  std::vector<float> wide;
  for (uint16_t bits : halves) wide.push_back(Exact(wanted.half, bits));
  return wide;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void CheckSameBits(Rank& self, const Case& wanted, size_t count, bool in_place) {
  const std::string name = std::to_string(count) + (in_place ? ".in" : ".out");
  const std::vector<float> numbers = Numbers(count, self.rank());
  const std::vector<float> expected = Expected(self, wanted, name, numbers);
  std::vector<float> in = numbers, apart(count, -1.0f);
  std::vector<float>& out = in_place ? in : apart;
  auto operation = Allreduce(self, wanted, name, wanted.half, in, &out);
  operation->wide = true;
  const hvd::Status status = self.Run(std::move(operation));
  CHECK_MESSAGE(status.ok(), status.text);
  CHECK(SameBits(out, expected));
  if (!in_place) CHECK(SameBits(in, numbers));
}

void CheckEverything(Rank& self) {
  for (DType half : {DType::kFloat16, DType::kBFloat16}) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAdasum}) {
      CheckSameBits(self, {half, op}, 3001, true);
    }
    CheckSameBits(self, {half, ReduceOp::kSum, 0.3, 0.7}, 3001, true);
    CheckSameBits(self, {half, ReduceOp::kAverage, 1024.0, 3.0}, 3001, false);
    for (size_t count : {0, 1, 21, 65, 20000}) CheckSameBits(self, {half, ReduceOp::kAverage}, count, count % 2 == 0);
  }
}

}  // namespace

TEST_CASE("a wire dtype gives the bits of rounding, reducing and widening") {
  for (const Layout& layout : {Layout{1, 1, true, 4096}, Layout{2, 1, true, 4096}, Layout{4, 1, true, 8192},
                               Layout{2, 2, false, 4096}, Layout{3, 1, false, 8192}, Layout{4, 2, true, 4096}}) {
    CAPTURE(layout.ranks);
    CAPTURE(layout.hosts);
    RunWorld(layout, CheckEverything);
  }
}

TEST_CASE("a wire dtype in a fused batch, where some ranks and some tensors have that type anyway") {
  for (bool memory : {true, false}) {
    RunWorld(Layout{3, 1, memory, 4096}, [](Rank& self) {
      const Case wanted{DType::kBFloat16, ReduceOp::kAverage};
      std::vector<std::vector<float>> tensors, expected;
      std::vector<std::vector<uint16_t>> halves(12);
      for (size_t i = 0; i < halves.size(); ++i) {
        tensors.push_back(Numbers(37 * i * i + 1, self.rank() + static_cast<int>(i)));
        expected.push_back(Expected(self, wanted, std::to_string(i), tensors[i]));
        for (float number : tensors[i]) halves[i].push_back(Rounded(wanted.half, number));
      }
      const auto is_half = [&](size_t i) { return (i + static_cast<size_t>(self.rank())) % 3 == 0; };
      std::vector<int64_t> handles;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const std::string name = "t" + std::to_string(i);
        auto operation = is_half(i) ? Allreduce(self, wanted, name, wanted.half, halves[i], &halves[i])
                                    : Allreduce(self, wanted, name, wanted.half, tensors[i], &tensors[i]);
        operation->wide = !is_half(i);
        handles.push_back(self.Submit(std::move(operation)));
      }
      for (int64_t handle : handles) CHECK(self.Wait(handle).ok());
      for (size_t i = 0; i < tensors.size(); ++i) {
        std::vector<float> wide;
        for (uint16_t bits : halves[i]) wide.push_back(Exact(wanted.half, bits));
        CHECK(SameBits(is_half(i) ? wide : tensors[i], expected[i]));
      }
    });
  }
}

TEST_CASE("a wire dtype with tensors in shared memory, and with a rank that has joined") {
  RunWorld(Layout{2, 1, true, 4096}, [](Rank& self) {
    hvd::Status status;
    std::unique_ptr<hvd::Buffer> buffer = self.world().Allocate(40000, &status);
    const std::vector<float> numbers = Numbers(10000, self.rank());
    const std::vector<float> expected = Expected(self, {DType::kFloat16, ReduceOp::kAverage}, "x", numbers);
    auto* shared = reinterpret_cast<float*>(buffer->data());
    std::copy(numbers.begin(), numbers.end(), shared);
    auto operation = self.Operation(OpKind::kAllreduce, "x", DType::kFloat16, {10000}, shared, shared);
    operation->request.op = ReduceOp::kAverage;
    operation->wide = true;
    CHECK(self.Run(std::move(operation)).ok());
    CHECK(SameBits(std::vector<float>(shared, shared + 10000), expected));

    if (self.rank() == 0) {
      std::vector<float> alone = numbers;
      auto last = Allreduce(self, {DType::kBFloat16}, "alone", DType::kBFloat16, alone, &alone);
      last->wide = true;
      CHECK(self.Run(std::move(last)).ok());
      size_t wrong = 0;
      for (size_t i = 0; i < alone.size(); ++i) {
        wrong += alone[i] != Exact(DType::kBFloat16, Rounded(DType::kBFloat16, numbers[i]));
      }
      CHECK(wrong == 0);
    }
    auto join = self.Operation<float>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr);
    CHECK(self.Run(std::move(join)).ok());
  });
}

namespace {

// Check a wire dtype through the C API. With a single rank nothing is rounded, unless results must not depend on the
// layout of hosts.
void CheckTable(bool deterministic) {
  const hvd_api* api = hvd_get_api(HVD_ABI_VERSION);
  const uint8_t secret[] = "a secret of the test";
  const hvd_identity identity{sizeof identity, 0, 1, "host", "127.0.0.1", "test", 0, secret, sizeof secret};
  hvd_settings settings;
  api->default_settings(&settings);
  settings.deterministic = deterministic;
  hvd_status status{};
  hvd_world* world = api->open(&identity, &settings, &status);
  REQUIRE(world);
  const hvd_peer self{sizeof self, 0, "host", "127.0.0.1", api->tcp_port(world), api->local_socket(world), ""};
  REQUIRE(api->connect(world, &self, 1, 20, &status) == HVD_OK);

  const float exact = 1.0f + 1.0f / 4096;  // needs one bit more than float16 has
  const float rounded = deterministic ? 1.0f : exact;
  constexpr size_t kOldSize = offsetof(hvd_op, wire_dtype);
  const auto reduce = [&](size_t size, int32_t wire, std::vector<float>* data) {
    const int64_t shape[] = {1};
    const char* names[] = {"a", "b"};
    std::vector<char> memory(2 * size);  // two structs of the size that the client declares
    for (size_t i = 0; i < 2; ++i) {
      hvd_op op{};
      op.size = static_cast<uint32_t>(size);
      op.dtype = static_cast<int32_t>(DType::kFloat32);
      op.reduce_op = static_cast<int32_t>(ReduceOp::kSum);
      op.device = size == kOldSize ? 0 : -1;  // a value that is ignored, because old clients do not have the field
      op.ndim = 1;
      op.name = names[i];
      op.shape = shape;
      op.input = op.output = data->data() + i;
      op.prescale = op.postscale = 1;
      op.wire_dtype = wire;
      std::memcpy(memory.data() + i * size, &op, size);
    }
    const auto* ops = reinterpret_cast<const hvd_op*>(memory.data());
    const int64_t handle = api->submit(world, 0, ops, 2, "group", 0, nullptr, nullptr, &status);
    if (!handle) return status.code;
    while (api->wait(world, handle, 1000, &status) == HVD_IN_PROGRESS) continue;
    api->release(world, handle);
    return static_cast<int32_t>(HVD_OK);
  };
  std::vector<float> data = {exact, exact};
  CHECK(reduce(kOldSize, 6, &data) == HVD_OK);
  CHECK(data == std::vector<float>{exact, exact});
  CHECK(reduce(sizeof(hvd_op), 0, &data) == HVD_OK);
  CHECK(data == std::vector<float>{exact, exact});
  CHECK(reduce(sizeof(hvd_op), 8, &data) == HVD_INVALID);
  CHECK(std::string(status.text) == "tensors travel as float16 or bfloat16, not as 8");
  CHECK(reduce(sizeof(hvd_op), 6, &data) == HVD_OK);
  CHECK(data == std::vector<float>{rounded, rounded});
  api->destroy(world);
}

}  // namespace

TEST_CASE("a wire dtype through the C table: older clients, what is no wire dtype, and when it counts") {
  for (bool deterministic : {false, true}) CheckTable(deterministic);
}
