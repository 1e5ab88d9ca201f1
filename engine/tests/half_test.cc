// SPDX-License-Identifier: Apache-2.0
// Conversions of small floats: every bit pattern to float32 and back, and rounding compared with exact arithmetic in
// double.
#include "base/half.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace hvd {
namespace {

struct Format {
  const char* name;
  int patterns;      // number of bit patterns, including the sign bit
  int mantissa;      // bits of the mantissa
  int lowest;        // exponent of the smallest normal number
  double too_large;  // smallest magnitude that rounds to a value outside the format
  float (*to_float)(uint32_t);
  uint32_t (*from_float)(float);
};

const Format kFormats[] = {
    {"float16", 65536, 10, -14, 65520, [](uint32_t b) { return FloatFromFloat16(static_cast<uint16_t>(b)); },
     [](float v) { return static_cast<uint32_t>(Float16FromFloat(v)); }},
    {"bfloat16", 65536, 7, -126, std::ldexp(511, 119),
     [](uint32_t b) { return FloatFromBFloat16(static_cast<uint16_t>(b)); },
     [](float v) { return static_cast<uint32_t>(BFloat16FromFloat(v)); }},
    {"float8_e4m3fn", 256, 3, -6, std::nextafter(464.0, 1e9),
     [](uint32_t b) { return FloatFromFloat8E4M3(static_cast<uint8_t>(b)); },
     [](float v) { return static_cast<uint32_t>(Float8E4M3FromFloat(v)); }},
    {"float8_e5m2", 256, 2, -14, 61440, [](uint32_t b) { return FloatFromFloat8E5M2(static_cast<uint8_t>(b)); },
     [](float v) { return static_cast<uint32_t>(Float8E5M2FromFloat(v)); }},
};

// Round to nearest even as defined: in units of the last place, with the default rounding of nearbyint.
double Nearest(const Format& format, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - 1, format.lowest) - format.mantissa;
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

void CheckRounding(const Format& format, float value) {
  const float got = format.to_float(format.from_float(value));
  INFO(format.name << " " << value << " gave " << got);
  if (std::isnan(value)) {
    REQUIRE(std::isnan(got));
  } else if (std::fabs(value) >= format.too_large) {
    REQUIRE_FALSE(std::isfinite(got));
  } else {
    REQUIRE(static_cast<double>(got) == Nearest(format, value));
    REQUIRE(std::signbit(got) == std::signbit(value));
  }
}

}  // namespace

TEST_CASE("Every pattern of a small float survives the way to float32 and back") {
  for (const Format& format : kFormats) {
    for (int bits = 0; bits < format.patterns; bits++) {
      const auto pattern = static_cast<uint32_t>(bits);
      const float value = format.to_float(pattern);
      INFO(format.name << " " << bits);
      if (std::isnan(value)) {
        REQUIRE(std::isnan(format.to_float(format.from_float(value))));
      } else {
        REQUIRE(format.from_float(value) == pattern);
      }
    }
  }
}

TEST_CASE("Rounding is to nearest even between all neighbours") {
  for (const Format& format : kFormats) {
    for (int bits = 0; bits < format.patterns; bits++) {
      const float value = format.to_float(static_cast<uint32_t>(bits));
      const float next = format.to_float(static_cast<uint32_t>(bits + 1) % static_cast<uint32_t>(format.patterns));
      if (!std::isfinite(value) || !std::isfinite(next) || std::signbit(value) != std::signbit(next)) continue;
      const float middle = static_cast<float>((static_cast<double>(value) + next) / 2);
      for (const float probe : {middle, std::nextafterf(middle, value), std::nextafterf(middle, next)}) {
        CheckRounding(format, probe);
      }
    }
  }
}

TEST_CASE("Rounding is right all over float32") {
  for (const Format& format : kFormats) {
    for (uint64_t bits = 0; bits < (1ull << 32); bits += 65521) {
      CheckRounding(format, FloatOf(static_cast<uint32_t>(bits)));
    }
  }
}

TEST_CASE("What is too large becomes infinite, or NaN in the format that has no infinity") {
  CHECK(Float16FromFloat(65519.996f) == 0x7bff);
  CHECK(Float16FromFloat(-65520) == 0xfc00);
  CHECK(Float8E5M2FromFloat(61440) == 0x7c);
  CHECK(Float8E4M3FromFloat(464) == 0x7e);
  CHECK(Float8E4M3FromFloat(465) == 0x7f);
  CHECK(Float8E4M3FromFloat(-INFINITY) == 0xff);
  CHECK(BFloat16FromFloat(3.4e38f) == 0x7f80);
}

TEST_CASE("A NaN whose payload is all in the dropped bits stays NaN") {
  CHECK(BFloat16FromFloat(FloatOf(0x7f800001)) == 0x7fc0);
  CHECK(BFloat16FromFloat(FloatOf(0xffffffff)) == 0xffff);
  CHECK(Float16FromFloat(FloatOf(0x7f800001)) == 0x7e00);
}

}  // namespace hvd
