// SPDX-License-Identifier: Apache-2.0
// Operations on sixteen float32 at a time, in as many vectors as the instruction set needs, so that all instruction
// sets sum in one order. Templates take an Isa, a type local to one file, so that no code is shared between instruction
// sets. An Isa defines the size of a vector, kBytes, and these operations on sixteen lanes: comparisons to a mask
// (Mask), the lowest byte of each lane to memory (StoreBytes), signed bytes to lanes (LoadBytes), and the lanes in a
// mask appended to arrays (Append).
#pragma once

#include <cstdint>
#include <cstring>

#include "base/vectors.h"

namespace hvd {

constexpr size_t kLanes = 16;
constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int32_t kAbsMask = 0x7fffffff;
constexpr uint32_t kNanBits = 0x7fc00000;

template <class Isa>
struct LanesOf {
  static constexpr int kParts = kLanes * sizeof(float) / Isa::kBytes;
  static constexpr int kWidth = Isa::kBytes / sizeof(float);
  using F = Vec<float, Isa::kBytes>;
  using I = Vec<int32_t, Isa::kBytes>;

  struct Ints {
    I parts[kParts];
  };
  struct Floats {
    F parts[kParts];
  };

  // Load `size` values. kWhole means that `size` is sixteen; otherwise the remaining lanes are 0.
  template <bool kWhole>
  static HVD_INLINE Floats Load(const float* from, size_t size) {
    float padded[kLanes];
    if constexpr (!kWhole) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, from, size * sizeof(float));
      from = padded;
    }
    Floats lanes;
    for (int k = 0; k < kParts; k++) lanes.parts[k] = LoadVec<float, Isa::kBytes>(from + k * kWidth);
    return lanes;
  }

  template <bool kWhole>
  static HVD_INLINE void Store(const Floats& lanes, float* to, size_t size) {
    float padded[kLanes];
    float* const whole = kWhole ? to : padded;
    for (int k = 0; k < kParts; k++) std::memcpy(whole + k * kWidth, &lanes.parts[k], sizeof(F));
    if constexpr (!kWhole) std::memcpy(to, padded, size * sizeof(float));
  }

  static HVD_INLINE Floats Splat(float value) {
    Floats lanes;
    for (int k = 0; k < kParts; k++) lanes.parts[k] = F{} + value;
    return lanes;
  }
};

struct WholeTile {
  static constexpr bool kWhole = true;
};
struct RestTile {
  static constexpr bool kWhole = false;
};

// Call f(offset, size, tag) for tiles of sixteen that cover [0, count), the last of which may be shorter.
template <class F>
HVD_INLINE void ForEachSixteen(size_t count, F&& f) {
  size_t i = 0;
  for (; count - i >= kLanes; i += kLanes) f(i, kLanes, WholeTile{});
  if (i < count) f(i, count - i, RestTile{});
}

// Load values + residual. kResidual is known at compile time, so that loops without a residual do no extra work.
template <class Isa, bool kResidual, bool kWhole>
HVD_INLINE typename LanesOf<Isa>::Floats LoadSum(const float* values, const float* residual, size_t i, size_t size) {
  using Lanes = LanesOf<Isa>;
  auto sum = Lanes::template Load<kWhole>(values + i, size);
  if constexpr (kResidual) {
    const auto other = Lanes::template Load<kWhole>(residual + i, size);
    for (int k = 0; k < Lanes::kParts; k++) sum.parts[k] += other.parts[k];
  }
  return sum;
}

// Maximum of |lane|, as the bits of a float32. The bits are at least kInfinityBits if a lane is not finite.
template <class Isa>
struct LargestOf {
  using Lanes = LanesOf<Isa>;
  using I = typename Lanes::I;
  typename Lanes::Ints bits = {};

  HVD_INLINE void Add(const typename Lanes::Floats& lanes) {
    for (int k = 0; k < Lanes::kParts; k++) {
      const I now = reinterpret_cast<I>(lanes.parts[k]) & kAbsMask;
      bits.parts[k] = now > bits.parts[k] ? now : bits.parts[k];
    }
  }

  HVD_INLINE int32_t Result() const {
    int32_t lanes[kLanes], largest = 0;
    std::memcpy(lanes, &bits, sizeof lanes);
    for (size_t i = 0; i < kLanes; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
  }
};

template <class T>
HVD_INLINE void FillWith(T* to, size_t count, T value) {
  for (size_t i = 0; i < count; i++) to[i] = value;
}

// Call f with two types that tell whether there is a residual, and whether there is a buffer for the rest.
template <bool kIs>
struct Known {
  static constexpr bool kValue = kIs;
};
template <class F>
HVD_INLINE void WithKnown(bool residual, bool left, F&& f) {
  if (residual && left) return f(Known<true>{}, Known<true>{});
  if (residual) return f(Known<true>{}, Known<false>{});
  if (left) return f(Known<false>{}, Known<true>{});
  f(Known<false>{}, Known<false>{});
}

}  // namespace hvd
