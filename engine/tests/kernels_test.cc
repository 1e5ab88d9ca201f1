// SPDX-License-Identifier: Apache-2.0
// The element-wise kernels against a naive scalar reference, in every instruction-set variant that this machine can
// run.
#include "collectives/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "tests/kernels_reference.h"
#include "tests/repeats.h"

namespace hvd {
namespace {

using namespace reference;

const DType kAllDTypes[] = {DType::kUInt8,    DType::kInt8,    DType::kUInt16,  DType::kInt16,      DType::kInt32,
                            DType::kInt64,    DType::kFloat16, DType::kFloat32, DType::kFloat64,    DType::kBool,
                            DType::kBFloat16, DType::kUInt32,  DType::kUInt64,  DType::kFloat8E4M3, DType::kFloat8E5M2};
const DType kFloatingDTypes[] = {DType::kFloat16,  DType::kFloat32,    DType::kFloat64,
                                 DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2};
const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
const size_t kCounts[] = {0, 1, 3, 17, 32, 63, 1000, 4099};

std::vector<std::string> Flavours() {
  std::vector<std::string> usable;
  for (const char* name : {"portable", "neon", "neon_fp16", "avx2", "avx512"}) {
    if (SelectKernelFlavour(name)) usable.push_back(name);
  }
  return usable;
}

// Guard that restores the variant that was in use before the test.
struct Restored {
  std::string before = KernelFlavour();
  ~Restored() { SelectKernelFlavour(before.c_str()); }
};

// A kernel's buffer at an odd address, because data inside a message may lie anywhere.
struct Shifted {
  Bytes memory;
  size_t shift;
  Shifted(const Bytes& content, size_t element) : memory(content.size() + 2 * (element | 1)), shift(element | 1) {
    std::fill(memory.begin(), memory.end(), 0xA5);
    std::copy(content.begin(), content.end(), memory.begin() + static_cast<long>(shift));
  }
  unsigned char* data() { return memory.data() + shift; }
  Bytes Content() const {
    return Bytes(memory.begin() + static_cast<long>(shift), memory.end() - static_cast<long>(shift));
  }
  bool Intact() const {
    for (size_t i = 0; i < shift; i++) {
      if (memory[i] != 0xA5 || memory[memory.size() - 1 - i] != 0xA5) return false;
    }
    return true;
  }
};

struct Case {
  DType dtype;
  ReduceOp op;
  size_t count;
  double postscale;
};

// Compare Reduce with the reference. `alias` is the index of the source that is also the destination, or -1.
void CheckReduce(const Case& c, const std::vector<Bytes>& contents, int alias, bool second) {
  const size_t element = SizeOf(c.dtype);
  std::vector<Shifted> sources;
  for (const Bytes& content : contents) sources.emplace_back(content, element);
  Shifted dst(Bytes(c.count * element), element), dst2(Bytes(c.count * element), element);
  std::vector<const void*> srcs;
  for (Shifted& source : sources) srcs.push_back(source.data());
  Shifted& result = alias < 0 ? dst : sources[static_cast<size_t>(alias)];

  Reduce(c.dtype, c.op, result.data(), second ? dst2.data() : nullptr, srcs.data(), static_cast<int>(srcs.size()),
         c.count, c.postscale);

  INFO(KernelFlavour() << " " << NameOf(c.dtype) << " " << NameOf(c.op) << " sources " << contents.size() << " count "
                       << c.count << " factor " << c.postscale << " alias " << alias << " second " << second);
  const Bytes expected = Expected(c.dtype, c.op, contents, c.count, c.postscale);
  REQUIRE(FirstDifference(c.dtype, result.Content(), expected, c.count) == c.count);
  REQUIRE(result.Intact());
  REQUIRE(dst2.Intact());
  if (second) REQUIRE(dst2.Content() == result.Content());
  for (size_t s = 0; s < sources.size(); s++) {
    if (static_cast<int>(s) != alias) REQUIRE(sources[s].Content() == contents[s]);
  }
}

}  // namespace

TEST_CASE("Reduce agrees with the reference for every dtype, operation, number of sources and count") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const DType dtype : kAllDTypes) {
      for (int nsrcs = 1; nsrcs <= 5; nsrcs++) {
        for (const size_t count : kCounts) {
          const std::vector<Bytes> sources = RandomSources(dtype, nsrcs, count);
          for (const ReduceOp op : kOps) {
            for (const double postscale : {1.0, 0.5, 1.0 / 3}) {
              CheckReduce({dtype, op, count, postscale}, sources, -1, false);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("The destination may be any of the sources, and a second one gets the same values") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const DType dtype : kAllDTypes) {
      for (int nsrcs = 1; nsrcs <= 5; nsrcs++) {
        const std::vector<Bytes> sources = RandomSources(dtype, nsrcs, 333);
        for (int alias = -1; alias < nsrcs; alias++) {
          CheckReduce({dtype, ReduceOp::kSum, 333, 1}, sources, alias, true);
          CheckReduce({dtype, ReduceOp::kMax, 333, 0.25}, sources, alias, alias % 2 == 0);
        }
      }
    }
  }
}

TEST_CASE("Every pair of a 16-bit float pattern and a probe is summed and multiplied right") {
  const Restored restored;
  // Zeros, denormals, ties, the largest finite numbers, infinities and NaN of float16 and bfloat16.
  const uint16_t probes[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x00ff, 0x80ff, 0x3c00, 0xbc01, 0x3f80, 0x3f81,
                             0x3fff, 0xbfff, 0x7bff, 0xfbff, 0x7f7f, 0x7c00, 0x7f80, 0x7e01, 0x7fff, 0xff81};
  const size_t count = Repeats(65536);
  Bytes every(2 * count), probe(2 * count);
  for (size_t i = 0; i < count; i++) Set<uint16_t>(&every, i, static_cast<uint16_t>(i * (65536 / count)));
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const uint16_t other : probes) {
      for (size_t i = 0; i < count; i++) Set<uint16_t>(&probe, i, other);
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
        for (const double postscale : {1.0, 0.5, 1.0 / 3}) {
          CheckReduce({dtype, ReduceOp::kSum, count, postscale}, {every, probe}, -1, false);
        }
        CheckReduce({dtype, ReduceOp::kProduct, count, 1}, {every, probe}, -1, false);
        CheckReduce({dtype, ReduceOp::kMin, count, 1}, {probe, every}, -1, false);
      }
    }
  }
}

TEST_CASE("A bfloat16 NaN becomes quiet and keeps the rest of its bits") {
  const Restored restored;
  std::vector<uint16_t> nans;
  for (uint32_t bits = 0x7f81; bits <= 0x7fff; bits++) {
    nans.push_back(static_cast<uint16_t>(bits));
    nans.push_back(static_cast<uint16_t>(bits | 0x8000));
  }
  const std::vector<uint16_t> ones(nans.size(), 0x3f80);
  const void* const srcs[] = {ones.data(), nans.data(), ones.data()};
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const int nsrcs : {2, 3}) {
      for (const double postscale : {1.0, 0.5, 1.0 / 3}) {
        std::vector<uint16_t> out(nans.size());
        Reduce(DType::kBFloat16, ReduceOp::kSum, out.data(), nullptr, srcs, nsrcs, out.size(), postscale);
        INFO(flavour << " sources " << nsrcs << " factor " << postscale);
        for (size_t i = 0; i < nans.size(); i++) REQUIRE(out[i] == (nans[i] | 0x40));
      }
    }
  }
}

TEST_CASE("Float16 averages next to overflow are right, alone and among ordinary numbers") {
  const Restored restored;
  const uint16_t large[] = {0x7bff, 0xfbff, 0x7800, 0x7400, 0x7c00, 0x7e01, 0x3c00};
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const uint16_t one : large) {
      for (const uint16_t other : large) {
        Bytes a = RandomBytes(DType::kFloat16, 256, 31), b = RandomBytes(DType::kFloat16, 256, 32);
        for (size_t i = 0; i < 256; i += 1 + i % 7) {
          Set<uint16_t>(&a, i, one);
          Set<uint16_t>(&b, i, other);
        }
        CheckReduce({DType::kFloat16, ReduceOp::kSum, 256, 0.5}, {a, b}, 0, true);
      }
    }
  }
}

TEST_CASE("Integers wrap, truncate toward zero and clamp") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    const int32_t largest = std::numeric_limits<int32_t>::max();
    int32_t a[] = {-3, 3, -1, largest, 7}, b[] = {0, 0, 0, 1, -9}, out[5];
    const void* srcs[] = {a, b};
    Reduce(DType::kInt32, ReduceOp::kSum, out, nullptr, srcs, 2, 5, 1);
    CHECK(out[3] == std::numeric_limits<int32_t>::min());
    Reduce(DType::kInt32, ReduceOp::kSum, out, nullptr, srcs, 1, 5, 0.5);
    CHECK(out[0] == -1);
    CHECK(out[1] == 1);
    CHECK(out[2] == 0);
    Reduce(DType::kInt32, ReduceOp::kSum, out, nullptr, srcs, 1, 5, 1e300);
    CHECK(out[0] == std::numeric_limits<int32_t>::min());
    CHECK(out[3] == largest);
    Reduce(DType::kInt32, ReduceOp::kSum, out, nullptr, srcs, 1, 5, std::nan(""));
    CHECK(out[4] == 0);
    uint64_t big[] = {~0ull}, scaled[1];
    ScaleCopy(DType::kUInt64, scaled, big, 1, 1.5);
    CHECK(scaled[0] == ~0ull);
    ScaleCopy(DType::kUInt64, scaled, big, 1, -1);
    CHECK(scaled[0] == 0);
  }
}

TEST_CASE("NaN in any source gives NaN, whatever the operation") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (int nsrcs = 1; nsrcs <= 5; nsrcs++) {
      for (int bad = 0; bad < nsrcs; bad++) {
        std::vector<std::vector<float>> values(static_cast<size_t>(nsrcs), std::vector<float>(9, 2.0f));
        values[static_cast<size_t>(bad)][4] = std::nanf("");
        std::vector<const void*> srcs;
        for (const auto& value : values) srcs.push_back(value.data());
        for (const ReduceOp op : kOps) {
          std::vector<float> out(9);
          Reduce(DType::kFloat32, op, out.data(), nullptr, srcs.data(), nsrcs, 9, 1);
          CHECK(std::isnan(out[4]));
          CHECK_FALSE(std::isnan(out[3]));
        }
      }
    }
  }
}

TEST_CASE("Bool is normalised and has no factor") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    const unsigned char a[] = {0, 0, 2, 255}, b[] = {0, 7, 0, 128};
    const void* srcs[] = {a, b};
    unsigned char out[4];
    Reduce(DType::kBool, ReduceOp::kSum, out, nullptr, srcs, 2, 4, 0.5);
    CHECK(Bytes(out, out + 4) == Bytes{0, 1, 1, 1});
    Reduce(DType::kBool, ReduceOp::kProduct, out, nullptr, srcs, 2, 4, 0.5);
    CHECK(Bytes(out, out + 4) == Bytes{0, 0, 0, 1});
  }
}

TEST_CASE("ScaleCopy multiplies or copies") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectKernelFlavour(flavour.c_str()));
    for (const DType dtype : kAllDTypes) {
      const Bytes source = RandomBytes(dtype, 1001, 5);
      Bytes out(source.size()), in_place = source;
      ScaleCopy(dtype, out.data(), source.data(), 1001, 1);
      CHECK(out == source);
      ScaleCopy(dtype, in_place.data(), in_place.data(), 1001, 0.3);
      const Bytes expected = Expected(dtype, ReduceOp::kSum, {source}, 1001, 0.3);
      CHECK(FirstDifference(dtype, in_place, expected, 1001) == 1001);
    }
  }
}

TEST_CASE("Adasum's arithmetic is right, and has the same bits in every flavour") {
  const Restored restored;
  for (const DType dtype : kFloatingDTypes) {
    for (const size_t count : kCounts) {
      // Use finite numbers of similar size, because sums of infinities would prove nothing.
      Bytes a(count * SizeOf(dtype)), b(count * SizeOf(dtype));
      std::vector<double> x(count), y(count);
      std::mt19937 random(11);
      for (size_t i = 0; i < count; i++) {
        for (auto [bytes, values] : {std::pair(&a, &x), std::pair(&b, &y)}) {
          const double value = static_cast<int>(random() % 33) / 4.0 - 4;
          if (dtype == DType::kFloat64) Set<double>(bytes, i, value);
          if (dtype == DType::kFloat32) Set<float>(bytes, i, static_cast<float>(value));
          if (dtype == DType::kFloat16) Set<uint16_t>(bytes, i, Float16FromFloat(static_cast<float>(value)));
          if (dtype == DType::kBFloat16) Set<uint16_t>(bytes, i, BFloat16FromFloat(static_cast<float>(value)));
          (*values)[i] = value;
          if (dtype == DType::kFloat8E4M3) {
            Set<uint8_t>(bytes, i, Float8E4M3FromFloat(static_cast<float>(value)));
            (*values)[i] = FloatFromFloat8E4M3(At<uint8_t>(*bytes, i));
          }
          if (dtype == DType::kFloat8E5M2) {
            Set<uint8_t>(bytes, i, Float8E5M2FromFloat(static_cast<float>(value)));
            (*values)[i] = FloatFromFloat8E5M2(At<uint8_t>(*bytes, i));
          }
        }
      }
      double expected[3] = {0, 0, 0};
      for (size_t i = 0; i < count; i++) {
        expected[0] += x[i] * y[i];
        expected[1] += x[i] * x[i];
        expected[2] += y[i] * y[i];
      }
      for (const std::string& flavour : Flavours()) {
        REQUIRE(SelectKernelFlavour(flavour.c_str()));
        INFO(flavour << " " << NameOf(dtype) << " " << count);
        double out[3];
        DotProducts(dtype, a.data(), b.data(), count, out);
        for (int k = 0; k < 3; k++) CHECK(out[k] == expected[k]);  // exact, because no product or sum needs rounding
      }
    }
  }
}

TEST_CASE("Random dot products and linear combinations have the same bits in every flavour") {
  const Restored restored;
  for (const DType dtype : kFloatingDTypes) {
    const size_t count = 4099;
    Bytes a = RandomBytes(dtype, count, 21), b = RandomBytes(dtype, count, 22);
    for (Bytes* bytes : {&a, &b}) {
      for (size_t i = 0; i < count; i++) {
        if (IsNan(dtype, *bytes, i)) std::memset(bytes->data() + i * SizeOf(dtype), 0, SizeOf(dtype));
      }
    }
    std::vector<double> first;
    Bytes first_combination;
    for (const std::string& flavour : Flavours()) {
      REQUIRE(SelectKernelFlavour(flavour.c_str()));
      INFO(flavour << " " << NameOf(dtype));
      std::vector<double> dots(3);
      DotProducts(dtype, a.data() + SizeOf(dtype), b.data(), count - 1, dots.data());
      Bytes combination = a;
      LinearCombination(dtype, combination.data(), combination.data(), 0.3, b.data(), -1.7, count);
      if (first.empty()) {
        first = dots;
        first_combination = combination;
      }
      for (int k = 0; k < 3; k++) {
        CHECK((std::isnan(dots[k]) ? std::isnan(first[k]) : dots[k] == first[k]));
      }
      CHECK(FirstDifference(dtype, combination, first_combination, count) == count);
    }
  }
}

TEST_CASE("LinearCombination agrees with plain arithmetic") {
  const float a[] = {1, 2, 3}, b[] = {10, 20, 30};
  float out[3];
  LinearCombination(DType::kFloat32, out, a, 0.5, b, 0.25, 3);
  for (int i = 0; i < 3; i++) CHECK(out[i] == 0.5f * a[i] + 0.25f * b[i]);
}

TEST_CASE("An unknown flavour is refused and changes nothing") {
  const std::string before = KernelFlavour();
  CHECK_FALSE(SelectKernelFlavour("abacus"));
  CHECK(before == KernelFlavour());
}

}  // namespace hvd
