// SPDX-License-Identifier: Apache-2.0
// Averages of integers under 64 bits equal the exact quotient, truncated toward zero, on every data path.
#include "collectives/integer_average.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "collectives/kernels.h"
#include "tests/whole_world.h"

using hvd::DType;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::Reduction;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

template <typename F>
void ForEachNarrowInteger(F f) {
  f(DType::kUInt8, uint8_t{});
  f(DType::kInt8, int8_t{});
  f(DType::kUInt16, uint16_t{});
  f(DType::kInt16, int16_t{});
  f(DType::kUInt32, uint32_t{});
  f(DType::kInt32, int32_t{});
}

uint32_t Mixed(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 2246822519u;
  return (bits ^ bits >> 13) * 3266489917u ^ bits >> 7;
}

// Return an element of a rank's input. Half of the elements are extremes, either equal on all ranks or not.
template <typename T>
T Extreme(int rank, size_t i, unsigned seed = 0) {
  const uint32_t kind = Mixed(static_cast<uint32_t>(i) * 31 + seed) % 6;
  const uint32_t own = Mixed(static_cast<uint32_t>(i) * 7919 + static_cast<uint32_t>(rank) * 104729 + seed);
  constexpr T kLowest = std::numeric_limits<T>::lowest(), kLargest = std::numeric_limits<T>::max();
  if (kind == 0) return kLargest;
  if (kind == 1) return kLowest;
  if (kind == 2) return own % 2 ? kLargest : kLowest;
  return static_cast<T>(own);
}

template <typename T>
std::vector<T> Extremes(int rank, size_t count, unsigned seed = 0) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Extreme<T>(rank, i, seed);
  return values;
}

// Return a value times the prescale factor, truncated and clamped to the type.
template <typename T>
T Scaled(T value, double factor) {
  if (factor == 1.0) return value;
  const double scaled = static_cast<double>(value) * factor;
  if (scaled <= static_cast<double>(std::numeric_limits<T>::lowest())) return std::numeric_limits<T>::lowest();
  if (scaled >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(scaled);
}

template <typename T>
T ExactAverage(int64_t sum, int ranks, double postscale) {
  if (postscale == 1.0) return static_cast<T>(sum / ranks);
  return static_cast<T>(
      Scaled<int64_t>(sum, postscale / ranks) < std::numeric_limits<T>::lowest()
          ? std::numeric_limits<T>::lowest()
          : std::min<int64_t>(Scaled<int64_t>(sum, postscale / ranks), std::numeric_limits<T>::max()));
}

// Return the exact average. `present` is the number of ranks that have not joined, `first` the index of the first
// element in the whole tensor.
template <typename T>
std::vector<T> Expected(int ranks, int present, size_t first, size_t count, unsigned seed, double prescale = 1.0,
                        double postscale = 1.0) {
  std::vector<T> expected(count);
  for (size_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    for (int rank = 0; rank < present; ++rank) sum += Scaled(Extreme<T>(rank, first + i, seed), prescale);
    expected[i] = ExactAverage<T>(sum, ranks, postscale);
  }
  return expected;
}

template <typename T>
std::unique_ptr<hvd::Operation> Average(Rank& self, OpKind kind, const std::string& name, DType dtype, size_t count,
                                        const T* in, T* out) {
  auto operation = self.Operation<T>(kind, name, dtype, {static_cast<int64_t>(count)}, in, out);
  operation->request.op = ReduceOp::kAverage;
  return operation;
}

// Check out of place, which leaves the input unchanged, then in place, with and without factors.
template <typename T>
void CheckAllreduce(Rank& self, DType dtype, T, size_t count) {
  const std::vector<T> in = Extremes<T>(self.rank(), count);
  for (const double factor : {1.0, 0.5}) {
    if (factor != 1.0 && count > 5000) continue;
    const std::string name = std::string(hvd::NameOf(dtype)) + std::to_string(count) + "." + std::to_string(factor);
    const std::vector<T> expected = Expected<T>(self.size(), self.size(), 0, count, 0, factor, 1 / factor);
    std::vector<T> from = in, to(count), both = in;
    for (const bool in_place : {false, true}) {
      auto operation = Average(self, OpKind::kAllreduce, name, dtype, count, in_place ? both.data() : from.data(),
                               in_place ? both.data() : to.data());
      operation->request.prescale = factor;
      operation->request.postscale = 1 / factor;
      const hvd::Status status = self.Run(std::move(operation));
      CHECK_MESSAGE(status.ok(), status.text);
    }
    CHECK_MESSAGE(to == expected, name);
    CHECK_MESSAGE(both == expected, "in place: " << name);
    CHECK_MESSAGE(from == in, "the input of " << name);
  }
}

// Check tensors of all types in one group, fused where possible.
void CheckGroup(Rank& self) {
  constexpr size_t kEach = 3, kCount = 1003;
  std::vector<std::vector<std::byte>> tensors, expected;
  std::vector<std::unique_ptr<hvd::Operation>> group;
  ForEachNarrowInteger([&](DType dtype, auto zero) {
    using T = decltype(zero);
    for (unsigned i = 0; i < kEach; ++i) {
      const std::vector<T> in = Extremes<T>(self.rank(), kCount + i, i),
                           out = Expected<T>(self.size(), self.size(), 0, kCount + i, i);
      const auto* const from = reinterpret_cast<const std::byte*>(in.data());
      const auto* const to = reinterpret_cast<const std::byte*>(out.data());
      tensors.emplace_back(from, from + in.size() * sizeof(T));
      expected.emplace_back(to, to + out.size() * sizeof(T));
      auto* const data = reinterpret_cast<T*>(tensors.back().data());
      const std::string name = std::string("group.") + hvd::NameOf(dtype) + std::to_string(i);
      group.push_back(Average<T>(self, OpKind::kAllreduce, name, dtype, kCount + i, data, data));
      group.back()->request.group = "group";
      group.back()->request.group_size = static_cast<uint32_t>(6 * kEach);
    }
  });
  hvd::Status status;
  const int64_t handle = self.world().Submit(std::move(group), true, nullptr, &status);
  CHECK_MESSAGE(status.ok(), status.text);
  status = self.Wait(handle);
  CHECK_MESSAGE(status.ok(), status.text);
  self.world().Release(handle);
  for (size_t i = 0; i < tensors.size(); ++i) CHECK_MESSAGE(tensors[i] == expected[i], "tensor " << i << " of a group");
}

template <typename T>
void CheckReducescatter(Rank& self, DType dtype, T, size_t count) {
  const size_t ranks = static_cast<size_t>(self.size()), me = static_cast<size_t>(self.rank());
  const size_t first = count / ranks * me + std::min(me, count % ranks), mine = count / ranks + (me < count % ranks);
  std::vector<T> in = Extremes<T>(self.rank(), count), out(mine);
  const std::vector<T> before = in;
  const std::string name = std::string("scatter.") + hvd::NameOf(dtype) + std::to_string(count);
  const hvd::Status status = self.Run(Average(self, OpKind::kReducescatter, name, dtype, count, in.data(), out.data()));
  CHECK_MESSAGE(status.ok(), status.text);
  CHECK_MESSAGE(out == Expected<T>(self.size(), self.size(), first, mine, 0), name);
  CHECK_MESSAGE(in == before, "the input of " << name);
}

void CheckEveryRoute(const Layout& layout) {
  CAPTURE(layout.ranks);
  CAPTURE(layout.hosts);
  CAPTURE(layout.memory);
  RunWorld(layout, [](Rank& self) {
    ForEachNarrowInteger([&](DType dtype, auto zero) {
      // Bytes: the fast path and small tensors, then around the limits of a slot of 4096 bytes, then several chunks.
      for (const size_t bytes : {0, 8, 100, 4096, 4100, 20004}) {
        CheckAllreduce(self, dtype, zero, bytes / sizeof zero);
        CheckReducescatter(self, dtype, zero, bytes / sizeof zero);
      }
    });
    CheckGroup(self);
  });
}

std::function<void(hvd::Settings*)> With(int algorithm) {
  return [=](hvd::Settings* settings) { settings->host_algorithm = algorithm + 1; };
}

void Everywhere(hvd::Settings* settings) { settings->hierarchical_allgather = settings->hierarchical_allreduce = 1; }

}  // namespace

TEST_CASE("integer averages: the kernel divides the exact sum, at any size, in place and not") {
  ForEachNarrowInteger([](DType dtype, auto zero) {
    using T = decltype(zero);
    for (const int members : {2, 3, 4, 5, 7}) {
      for (const size_t count : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, size_t{1999}}) {
        const Reduction reduction{dtype, ReduceOp::kSum, 1.0, 1.0, members};
        const std::vector<T> expected = Expected<T>(members, members, 0, count, 0);
        std::vector<std::vector<T>> inputs;
        std::vector<const void*> sources;
        for (int j = 0; j < members; ++j) inputs.push_back(Extremes<T>(j, count));
        for (const auto& input : inputs) sources.push_back(input.data());
        // Sources and outputs at odd addresses, as in messages.
        const auto* const bytes = reinterpret_cast<const std::byte*>(inputs[1].data());
        std::vector<std::byte> message(1), dst(count * sizeof(T) + 1);
        message.insert(message.end(), bytes, bytes + count * sizeof(T));
        sources[1] = message.data() + 1;
        std::vector<T> dst2(count);
        hvd::AverageIntegers(reduction, dst.data() + 1, dst2.data(), sources.data(), members, count);
        CHECK(std::memcmp(dst.data() + 1, expected.data(), count * sizeof(T)) == 0);
        CHECK(dst2 == expected);
        sources[1] = inputs[1].data();
        hvd::Combine(reduction, inputs[1].data(), inputs[0].data(), sources.data(), members, count);
        CHECK(inputs[0] == expected);
        CHECK(inputs[1] == expected);
      }
    }
  });
}

TEST_CASE("integer averages: every quotient of 8 and 16 bits, and those next to whole numbers of 32 bits, is exact") {
  for (const int64_t divisor : {2, 3, 49, 1000, 32768, 32769, 1048576}) {
    CAPTURE(divisor);
    ForEachNarrowInteger([divisor](DType dtype, auto zero) {
      using T = decltype(zero);
      const Reduction reduction{dtype, ReduceOp::kSum, 1.0, 1.0, divisor};
      std::vector<int64_t> sums;
      const int64_t lowest = std::numeric_limits<T>::lowest(), largest = std::numeric_limits<T>::max();
      for (int64_t step = 0; step <= 2000; ++step) {
        const int64_t quotient = lowest + (largest - lowest) / 2000 * step;
        for (const int64_t off : {-1, 0, 1}) {
          sums.push_back(std::clamp(quotient * divisor + off, lowest * divisor, largest * divisor));
        }
      }
      const bool in_int32 = reduction.SumDType() == DType::kInt32;
      CHECK(in_int32 == (sizeof(T) < 4 && divisor <= 32768));
      const std::vector<int32_t> narrow_sums(sums.begin(), sums.end());
      std::vector<T> averages(sums.size());
      hvd::NarrowAverages(reduction, averages.data(),
                          in_int32 ? static_cast<const void*>(narrow_sums.data()) : sums.data(), sums.size());
      bool right = true;
      for (size_t i = 0; i < sums.size(); ++i) right &= averages[i] == static_cast<T>(sums[i] / divisor);
      CHECK(right);
    });
  }
}

TEST_CASE("integer averages: widened elements keep their values") {
  for (const int64_t divisor : {2, 32769}) {
    ForEachNarrowInteger([divisor](DType dtype, auto zero) {
      using T = decltype(zero);
      const Reduction reduction{dtype, ReduceOp::kSum, 1.0, 1.0, divisor};
      const std::vector<T> values = Extremes<T>(0, 1000);
      std::vector<int64_t> wide(1000);
      hvd::WidenIntegers(reduction, wide.data(), values.data(), 1000);
      if (reduction.SumDType() == DType::kInt32) {
        std::vector<int32_t> narrow(1000);
        std::memcpy(narrow.data(), wide.data(), 4000);
        CHECK(std::equal(values.begin(), values.end(), narrow.begin(), [](auto a, auto b) { return int64_t{a} == b; }));
      } else {
        CHECK(std::equal(values.begin(), values.end(), wide.begin(), [](auto a, auto b) { return int64_t{a} == b; }));
      }
    });
  }
}

TEST_CASE("integer averages: other reductions are not widened") {
  for (int dtype = 0; dtype < hvd::kDTypeCount; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    CHECK(!Reduction{type, ReduceOp::kSum, 1.0, 0.5, 1}.IsWidened());
    const bool narrow = std::count(std::begin(hvd::kNarrowIntegers), std::end(hvd::kNarrowIntegers), type) > 0;
    CHECK(Reduction{type, ReduceOp::kSum, 1.0, 1.0, 2}.IsWidened() == narrow);
  }
}

TEST_CASE("integer averages: exact inside a host, in shared memory and by sockets") {
  CheckEveryRoute({2, 1});
  CheckEveryRoute({3, 1, true, 8192});
  CheckEveryRoute({2, 1, false});
}

TEST_CASE("integer averages: exact between hosts by every algorithm") {
  for (const int algorithm : {0, 1, 2}) {
    CAPTURE(algorithm);
    CheckEveryRoute({3, 3, true, 4096, With(algorithm)});
    CheckEveryRoute({4, 2, true, 4096, With(algorithm)});
  }
}

TEST_CASE("integer averages: exact where hosts differ, and where ranks of a host share no memory") {
  CheckEveryRoute({5, 2, true, 4096, Everywhere});
  CheckEveryRoute({4, 2, false, 4096, Everywhere});
}

TEST_CASE("integer averages: exact where tensors lie in shared memory") {
  for (const Layout& layout : {Layout{2, 1}, Layout{3, 1}}) {
    RunWorld(layout, [](Rank& self) {
      ForEachNarrowInteger([&](DType dtype, auto zero) {
        using T = decltype(zero);
        constexpr size_t kCount = 20001;
        hvd::Status status;
        const auto buffer = self.world().Allocate(kCount * sizeof(T), &status);
        REQUIRE_MESSAGE(status.ok(), status.text);
        T* const data = reinterpret_cast<T*>(buffer->data());
        const std::vector<T> in = Extremes<T>(self.rank(), kCount);
        std::copy(in.begin(), in.end(), data);
        CHECK(self.Run(Average(self, OpKind::kAllreduce, hvd::NameOf(dtype), dtype, kCount, data, data)).ok());
        const std::vector<T> expected = Expected<T>(self.size(), self.size(), 0, kCount, 0);
        CHECK(std::equal(expected.begin(), expected.end(), data));
      });
      CHECK(self.world().Describe().find("\"direct_batches\": 6") != std::string::npos);
    });
  }
}

TEST_CASE("integer averages: a rank that has joined contributes zeros, and counts") {
  for (const Layout& layout : {Layout{3, 1}, Layout{3, 3, true, 4096, With(1)}, Layout{4, 2, true, 4096, With(2)}}) {
    CAPTURE(layout.hosts);
    RunWorld(layout, [](Rank& self) {
      const int present = self.size() - 1;
      if (self.rank() < present) {
        for (const size_t count : {size_t{50}, size_t{20001}}) {
          ForEachNarrowInteger([&](DType dtype, auto zero) {
            using T = decltype(zero);
            std::vector<T> data = Extremes<T>(self.rank(), count);
            const std::string name = hvd::NameOf(dtype) + std::to_string(count);
            const hvd::Status status =
                self.Run(Average(self, OpKind::kAllreduce, name, dtype, count, data.data(), data.data()));
            CHECK_MESSAGE(status.ok(), status.text);
            CHECK_MESSAGE(data == Expected<T>(self.size(), present, 0, count, 0), name);
          });
        }
      }
      CHECK(self.Run(self.Operation<char>(OpKind::kJoin, "join", DType::kUInt8, {}, nullptr, nullptr)).ok());
    });
  }
}

TEST_CASE("integer sums wrap as before, and minima, maxima and products stay in their type") {
  RunWorld({4, 2, true, 4096, With(1)}, [](Rank& self) {
    std::vector<int8_t> sum(9000, 100), most(9000, static_cast<int8_t>(self.rank()));
    CHECK(self.Run(self.Operation<int8_t>(OpKind::kAllreduce, "s", DType::kInt8, {9000}, sum.data(), sum.data())).ok());
    CHECK(std::count(sum.begin(), sum.end(), static_cast<int8_t>(400 - 512)) == 9000);
    auto operation = self.Operation<int8_t>(OpKind::kAllreduce, "m", DType::kInt8, {9000}, most.data(), most.data());
    operation->request.op = ReduceOp::kMax;
    CHECK(self.Run(std::move(operation)).ok());
    CHECK(std::count(most.begin(), most.end(), int8_t{3}) == 9000);
  });
}
