// SPDX-License-Identifier: Apache-2.0
// The conversions between float32 and the half types against half.h, in every flavour that this machine can run.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "collectives/half.h"
#include "collectives/kernels.h"

namespace hvd {
namespace {

uint16_t Rounded(DType half, float value) {
  return half == DType::kFloat16 ? Float16FromFloat(value) : BFloat16FromFloat(value);
}
float Exact(DType half, uint16_t bits) {
  return half == DType::kFloat16 ? FloatFromFloat16(bits) : FloatFromBFloat16(bits);
}

// Every value of the half type, the two neighbours of the midpoint to the next one, the midpoint itself, and what lies
// at the ends of float32: subnormals, infinities, NaN with a payload in any of its bits.
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

}  // namespace hvd
