// SPDX-License-Identifier: Apache-2.0
// The conversions between float32 and the half types against half.h, in every instruction-set variant that this machine
// can run.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "collectives/kernels.h"

namespace hvd {
namespace {

uint16_t Rounded(DType half, float value) {
  return half == DType::kFloat16 ? Float16FromFloat(value) : BFloat16FromFloat(value);
}
float Exact(DType half, uint16_t bits) {
  return half == DType::kFloat16 ? FloatFromFloat16(bits) : FloatFromBFloat16(bits);
}

// Return the float32 values that show rounding errors: every value of the half type, the midpoint to the next value,
// both neighbours of that midpoint, and extremes of float32 (subnormals, infinities, NaN with a payload in any of its
// bits).
std::vector<float> Telling(DType half) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    const uint32_t exact = BitsOf(Exact(half, static_cast<uint16_t>(bits)));
    const uint32_t step = half == DType::kFloat16 ? 0x1000 : 0x8000;
    for (uint32_t more : {0u, step - 1, step, step + 1}) values.push_back(FloatOf(exact + more));
  }
  for (uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t bits : {1u, 0x7fffffu, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0x7fc00000u,
                          0x33000000u, 0x33000001u, 0x477fefffu, 0x477ff000u}) {
      values.push_back(FloatOf(sign | bits));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100000; i++) values.push_back(FloatOf(static_cast<uint32_t>(random())));
  return values;
}

template <typename Body>
void InEveryFlavour(Body body) {
  const std::string before = KernelFlavour();
  for (const char* flavour : {"portable", "neon", "neon_fp16", "avx2", "avx512"}) {
    if (!SelectKernelFlavour(flavour)) continue;
    CAPTURE(flavour);
    for (DType half : {DType::kFloat16, DType::kBFloat16}) body(half);
  }
  SelectKernelFlavour(before.c_str());
}

}  // namespace

TEST_CASE("Narrow rounds every float32 as half.h does") {
  InEveryFlavour([](DType half) {
    const std::vector<float> values = Telling(half);
    std::vector<uint16_t> narrow(values.size());
    Narrow(half, narrow.data(), values.data(), values.size());
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); i++) wrong += narrow[i] != Rounded(half, values[i]);
    CHECK(wrong == 0);
  });
}

TEST_CASE("Widen gives every half value as half.h does") {
  InEveryFlavour([](DType half) {
    std::vector<uint16_t> all(0x10000);
    for (size_t bits = 0; bits < all.size(); bits++) all[bits] = static_cast<uint16_t>(bits);
    std::vector<float> wide(all.size());
    Widen(half, wide.data(), all.data(), all.size());
    size_t wrong = 0;
    for (size_t i = 0; i < all.size(); i++) wrong += BitsOf(wide[i]) != BitsOf(Exact(half, all[i]));
    CHECK(wrong == 0);
  });
}

TEST_CASE("conversions touch exactly what they are told to, wherever it lies") {
  InEveryFlavour([](DType half) {
    for (size_t count : {0, 1, 2, 7, 8, 15, 31, 32, 33, 100}) {
      std::vector<float> from(count + 2, 1.5f), back(count + 2, 9.0f);
      std::vector<uint16_t> narrow(count + 2, 0xabcd);
      Narrow(half, narrow.data() + 1, from.data() + 1, count);
      Widen(half, back.data() + 1, narrow.data() + 1, count);
      CHECK(narrow.front() == 0xabcd);
      CHECK(narrow.back() == 0xabcd);
      CHECK(back.front() == 9.0f);
      CHECK(back.back() == 9.0f);
      for (size_t i = 1; i <= count; i++) CHECK(back[i] == 1.5f);
    }
  });
}

namespace {

// Return what a rank adds to its own numbers: halves of every kind, in another order for each rank.
std::vector<uint16_t> HalvesOf(int rank, size_t count) {
  const uint16_t telling[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x7c00, 0x7f7f,
                              0xff7f, 0x7f80, 0xff80, 0x3f80, 0x3c00, 0x0080, 0x80ff, 0x3f81};
  std::mt19937 random(static_cast<unsigned>(rank) + 40);
  std::vector<uint16_t> halves(count);
  for (uint16_t& half : halves) {
    half = static_cast<uint16_t>(random() % 4 ? random() : telling[random() % std::size(telling)]);
  }
  return halves;
}

bool IsNan(DType half, uint16_t bits) { return std::isnan(Exact(half, bits)); }

// Compare SumWide with Narrow, Reduce and Widen in sequence, in place or not. Where both sources are NaN, the result is
// one of them.
void CheckSumWide(DType half, const std::vector<float>& own_values, int own, double postscale, bool in_place) {
  const size_t count = own_values.size();
  std::vector<uint16_t> halves[] = {HalvesOf(0, count), HalvesOf(1, count)};
  Narrow(half, halves[own].data(), own_values.data(), count);
  const void* srcs[] = {halves[0].data(), halves[1].data()};
  std::vector<uint16_t> expected(count);
  Reduce(half, ReduceOp::kSum, expected.data(), nullptr, srcs, 2, count, postscale);

  std::vector<float> values = own_values, apart(count + 2, 9.0f);
  std::vector<uint16_t> narrow(count + 2, 0xabcd);
  float* const wide = in_place ? values.data() : apart.data() + 1;
  srcs[own] = values.data();
  SumWide(half, narrow.data() + 1, wide, srcs, own, count, postscale);

  CAPTURE(own);
  CAPTURE(postscale);
  CAPTURE(count);
  CHECK(narrow.front() == 0xabcd);
  CHECK(narrow.back() == 0xabcd);
  CHECK(apart.front() == 9.0f);
  CHECK(apart.back() == 9.0f);
  size_t wrong = 0;
  for (size_t i = 0; i < count; i++) {
    const bool both = IsNan(half, halves[0][i]) && IsNan(half, halves[1][i]);
    const uint16_t got = narrow[i + 1];
    wrong += both ? !IsNan(half, got) : got != expected[i];
    wrong += BitsOf(wide[i]) != BitsOf(Exact(half, got));
    if (!in_place) wrong += BitsOf(values[i]) != BitsOf(own_values[i]);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("SumWide gives the bits of narrowing, reducing and widening") {
  InEveryFlavour([](DType half) {
    const std::vector<float> values = Telling(half);
    for (double postscale : {1.0, 0.5, 1.0 / 3}) {
      for (int own : {0, 1}) CheckSumWide(half, values, own, postscale, own == 0);
    }
  });
}

TEST_CASE("SumWide at every length, with one NaN or infinity among ordinary numbers or none") {
  InEveryFlavour([](DType half) {
    for (size_t count : {0, 1, 7, 8, 31, 32, 33, 100, 1023, 1024, 1025, 2085}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; i++) values[i] = 0.37f * static_cast<float>(i % 91) - 12;
      for (int own : {0, 1}) CheckSumWide(half, values, own, 0.5, own == 0);
      for (uint32_t special : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u, 0xff800000u, 0x80000001u}) {
        if (count > 0) values[count * 2 / 3] = FloatOf(special);
        CheckSumWide(half, values, 1, 1, true);
        CheckSumWide(half, values, 0, 0.5, false);
      }
    }
  });
}

}  // namespace hvd
