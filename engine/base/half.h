// SPDX-License-Identifier: Apache-2.0
// Conversions between float32 and the formats that the processor cannot add: float16, bfloat16, float8 e4m3fn and e5m2.
// They round to nearest even, keep NaN, and contain no branches.
#pragma once

#include <cstdint>
#include <cstring>

// Always inline these functions. Files that include this are compiled for different instruction sets, and the linker
// might merge a function with a copy that this machine cannot run. Files for other processors define the macro
// themselves.
#ifndef HVD_INLINE
#define HVD_INLINE inline __attribute__((always_inline))
#endif

namespace hvd {

HVD_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

HVD_INLINE float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Choose by arithmetic, because compilers would turn "?:" into a branch, and then not vectorise the loop around it.
HVD_INLINE uint32_t Choose(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & (0u - static_cast<uint32_t>(condition)));
}

// A format with a sign, kWidth - 1 - kMantissa bits of exponent and kMantissa bits of mantissa.
// Without infinities (e4m3fn) the one all-ones pattern is NaN, and what is too large becomes NaN too.
template <int kWidth, int kMantissa, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kDropped = 23 - kMantissa;
  static constexpr int kBias = (1 << (kWidth - 2 - kMantissa)) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kMagnitude = (1u << (kWidth - 1)) - 1;
  static constexpr uint32_t kInfinity = kMagnitude >> kMantissa << kMantissa;
  static constexpr uint32_t kQuietNan = kHasInfinity ? kInfinity | 1u << (kMantissa - 1) : kMagnitude;
  static constexpr uint32_t kTooLarge = kHasInfinity ? kInfinity : kQuietNan;

  static HVD_INLINE float ToFloat(uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t sign = (bits & ~kMagnitude) << (32 - kWidth);
    const uint32_t normal = (magnitude << kDropped) + kRebias;
    // 2^(1 - bias - mantissa bits) is the unit of the subnormal numbers.
    const float unit = FloatOf(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
    const uint32_t subnormal = BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * unit);
    const uint32_t special = 0x7f800000u | magnitude << kDropped | static_cast<uint32_t>(IsNan(magnitude)) << 22;
    uint32_t result = Choose(magnitude < (1u << kMantissa), subnormal, normal);
    result = Choose(magnitude >= kTooLarge, special, result);
    return FloatOf(result | sign);
  }

  static HVD_INLINE uint32_t FromFloat(float value) {
    const uint32_t all = BitsOf(value);
    const uint32_t magnitude = all & 0x7fffffffu;
    const uint32_t sign = (all >> (32 - kWidth)) & ~kMagnitude;
    const uint32_t half = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
    uint32_t result = (magnitude + half - kRebias) >> kDropped;
    result = Choose(result > kTooLarge, kTooLarge, result);
    // Adding a power of two whose last place is the subnormal unit lets the adder round.
    const uint32_t anchor = static_cast<uint32_t>(127 + 1 - kBias - kMantissa + 23) << 23;
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + FloatOf(anchor)) - anchor;
    result = Choose(magnitude < kRebias + (1u << 23), subnormal, result);
    const uint32_t nan = kQuietNan | (magnitude >> kDropped & kMagnitude);
    result = Choose(magnitude > 0x7f800000u, nan, result);
    return result | sign;
  }

 private:
  static HVD_INLINE bool IsNan(uint32_t magnitude) {
    return kHasInfinity ? magnitude > kInfinity : magnitude == kMagnitude;
  }
};

using Float16Format = SmallFloat<16, 10, true>;
using Float8E4M3Format = SmallFloat<8, 3, false>;
using Float8E5M2Format = SmallFloat<8, 2, true>;

HVD_INLINE float FloatFromFloat16(uint16_t bits) { return Float16Format::ToFloat(bits); }
HVD_INLINE uint16_t Float16FromFloat(float value) { return static_cast<uint16_t>(Float16Format::FromFloat(value)); }

HVD_INLINE float FloatFromBFloat16(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }
HVD_INLINE uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
  return static_cast<uint16_t>(Choose(value != value, bits | 0x00400000u, rounded) >> 16);
}

HVD_INLINE float FloatFromFloat8E4M3(uint8_t bits) { return Float8E4M3Format::ToFloat(bits); }
HVD_INLINE uint8_t Float8E4M3FromFloat(float value) { return static_cast<uint8_t>(Float8E4M3Format::FromFloat(value)); }
HVD_INLINE float FloatFromFloat8E5M2(uint8_t bits) { return Float8E5M2Format::ToFloat(bits); }
HVD_INLINE uint8_t Float8E5M2FromFloat(float value) { return static_cast<uint8_t>(Float8E5M2Format::FromFloat(value)); }

}  // namespace hvd
