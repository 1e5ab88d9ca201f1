// SPDX-License-Identifier: Apache-2.0
// The loops for float32 that travels as float16 or bfloat16: rounding, widening, and sums whose sources are
// rounded in registers.
#pragma once

#include "collectives/kernels_table.h"
#include "collectives/kernels_tile.h"

namespace hvd {

// NaN in a lane where a source had one, for elements whose stores do not round NaN right. One look at the end of a loop
// is cheaper than one in every turn.
template <class E>
struct NanTrace {
  static constexpr int kPairs = kTilePartsOf<E> / 2;
  typename E::V lanes[kPairs] = {};

  template <class TileType>
  HVD_INLINE void Add(const TileType& tile) {
    if constexpr (!E::kStoresAnyNan) {
      for (int k = 0; k < kPairs; k++) lanes[k] = E::TraceOfNan(lanes[k], tile.parts[2 * k], tile.parts[2 * k + 1]);
    }
  }

  HVD_INLINE bool Found() const {
    if constexpr (E::kStoresAnyNan) return false;
    auto all = lanes[0];
    for (int k = 1; k < kPairs; k++) all += lanes[k];
    const auto nan = all != all;
    uint64_t words[sizeof nan / sizeof(uint64_t)], any = 0;
    std::memcpy(words, &nan, sizeof nan);
    for (uint64_t word : words) any |= word;
    return any != 0;
  }
};

template <class TileType>
HVD_INLINE void PrefetchLanes(const float* lanes) {
  constexpr size_t kLine = 16;
  for (size_t i = 0; i < TileType::kSize; i += kLine) __builtin_prefetch(lanes + i);
}

// Not inlined: it is rare.
template <class E>
__attribute__((noinline)) void NarrowOneByOne(uint16_t* dst, const float* src, size_t count) {
  for (size_t i = 0; i < count; i++) dst[i] = E::FromFloat(src[i]);
}

template <class E>
void NarrowLoop(void* dst, const void* src, size_t count) {
  const auto to = static_cast<uint16_t*>(dst);
  const auto from = static_cast<const float*>(src);
  for (size_t begin = 0; begin < count; begin += kWideBlock) {
    const size_t length = count - begin < kWideBlock ? count - begin : kWideBlock;
    NanTrace<E> trace;
    ForEachTile<E>(length, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
      using TileType = std::remove_pointer_t<decltype(tag)>;
      PrefetchLanes<TileType>(from + begin + i + 512);
      const auto tile = TileType::LoadLanes(from + begin + i, size);
      trace.Add(tile);
      tile.Store(to + begin + i, size);
    });
    if (__builtin_expect(trace.Found(), 0)) NarrowOneByOne<E>(to + begin, from + begin, length);
  }
}

template <class E>
__attribute__((noinline)) void RoundOneByOne(float* dst, const float* src, size_t count) {
  for (size_t i = 0; i < count; i++) dst[i] = E::ToFloat(E::FromFloat(src[i]));
}

template <class E>
void RoundLoop(float* dst, const float* src, size_t count) {
  for (size_t begin = 0; begin < count; begin += kWideBlock) {
    const size_t length = count - begin < kWideBlock ? count - begin : kWideBlock;
    NanTrace<E> trace;
    ForEachTile<E>(length, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
      using TileType = std::remove_pointer_t<decltype(tag)>;
      PrefetchLanes<TileType>(src + begin + i + 512);
      TileType tile = TileType::LoadLanes(src + begin + i, size);
      trace.Add(tile);
      for (int k = 0; k < TileType::kTileParts; k += 2) E::Widen(E::Narrowed(tile.parts + k), tile.parts + k);
      tile.StoreLanes(dst + begin + i, size);
    });
    if (__builtin_expect(trace.Found(), 0)) RoundOneByOne<E>(dst + begin, src + begin, length);
  }
}

template <class E>
void WidenLoop(void* dst, const void* src, size_t count) {
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType::Load(static_cast<const uint16_t*>(src) + i, size).StoreLanes(static_cast<float*>(dst) + i, size);
  });
}

// Stores a tile of sums twice: rounded, and what that is in float32.
template <class E, class TileType>
HVD_INLINE void StoreTwice(const TileType& sum, uint16_t* narrow, float* wide, size_t size) {
  uint16_t padded[TileType::kSize];
  uint16_t* const whole = TileType::kIsWhole ? narrow : padded;
  TileType result;
  for (int k = 0; k < TileType::kTileParts; k += 2) {
    const auto halves = E::Narrowed(sum.parts + k);
    E::Write(whole + k * TileType::kLanes, halves);
    E::Widen(halves, result.parts + k);
  }
  if (!TileType::kIsWhole) std::memcpy(narrow, padded, size * sizeof(uint16_t));
  result.StoreLanes(wide, size);
}

// The elements [begin, begin + count) of a sum of two. Our own have no NaN where E does not round NaN. Result rounds
// the sums.
template <class E, class Result>
HVD_INLINE void SumWideVectors(const WideSum& sum, size_t begin, size_t count) {
  const uint16_t* const other = sum.Other() + begin;
  const float* const own = sum.Own() + begin;
  const auto factor = static_cast<float>(sum.postscale);
  int scaled = sum.postscale != 1;
  __asm__("" : "+r"(scaled));  // see ReduceLoop
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    PrefetchLanes<TileType>(own + i + kWideBlock);
    __builtin_prefetch(other + i + 256);
    TileType rounded = TileType::LoadLanes(own + i, size);
    for (int k = 0; k < TileType::kTileParts; k += 2) E::Widen(E::Narrowed(rounded.parts + k), rounded.parts + k);
    TileType total = TileType::Load(other + i, size);
    for (int k = 0; k < TileType::kTileParts; k++) total.parts[k] += rounded.parts[k];
    if (scaled) total = Scaled<E>(total, factor);
    StoreTwice<Result>(total, sum.narrow + begin + i, sum.wide + begin + i, size);
  });
}

// The same for two sources of ours, and both results in float32. kExact: the sources need no rounding. Two vectors at a
// time: there are no registers for two tiles and what rounding needs.
template <class E, class Result, bool kExact>
HVD_INLINE void SumRoundedVectors(const RoundedSum& sum, size_t begin, size_t count) {
  const float *const a = sum.a + begin, *const b = sum.b + begin;
  float *const dst = sum.dst + begin, *const dst2 = sum.dst2 + begin;
  const auto factor = static_cast<float>(sum.postscale);
  int scaled = sum.postscale != 1;
  __asm__("" : "+r"(scaled));  // see ReduceLoop
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    PrefetchLanes<TileType>(a + i + kWideBlock);
    PrefetchLanes<TileType>(b + i + kWideBlock);
    TileType total = TileType::LoadLanes(a + i, size);
    const TileType other = TileType::LoadLanes(b + i, size);
    for (int k = 0; k < TileType::kTileParts; k += 2) {
      typename E::V right[2] = {other.parts[k], other.parts[k + 1]};
      if constexpr (!kExact) {
        E::Widen(E::Narrowed(total.parts + k), total.parts + k);
        E::Widen(E::Narrowed(right), right);
      }
      total.parts[k] += right[0];
      total.parts[k + 1] += right[1];
      if (scaled) {
        total.parts[k] *= factor;
        total.parts[k + 1] *= factor;
      }
      E::Widen(Result::Narrowed(total.parts + k), total.parts + k);
    }
    total.StoreLanes(dst + i, size);
    total.StoreLanes(dst2 + i, size);
  });
}

template <class E>
HVD_INLINE bool FindsNan(const float* from, size_t count) {
  NanTrace<E> trace;
  ForEachTile<E>(count, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    trace.Add(std::remove_pointer_t<decltype(tag)>::LoadLanes(from + i, size));
  });
  return trace.Found();
}

// Looks for NaN in a block before it is overwritten.
template <class E, class Result>
void SumWideLoop(const WideSum& sum, size_t count) {
  if constexpr (E::kStoresAnyNan) return SumWideVectors<E, Result>(sum, 0, count);
  for (size_t begin = 0; begin < count; begin += kWideBlock) {
    const size_t size = count - begin < kWideBlock ? count - begin : kWideBlock;
    if (__builtin_expect(FindsNan<E>(sum.Own() + begin, size), 0)) {
      SumWideInSteps(sum, begin, size);
    } else {
      SumWideVectors<E, Result>(sum, begin, size);
    }
  }
}

// Whether these float32 are bfloat16 already, NaN included: the lower halves are empty.
template <class E>
HVD_INLINE bool AreExact(const float* a, const float* b, size_t count) {
  using Bits = Vec<uint32_t, sizeof(typename E::V)>;
  Bits used[kTilePartsOf<E>] = {};
  ForEachTile<E>(count, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    const TileType left = TileType::LoadLanes(a + i, size), right = TileType::LoadLanes(b + i, size);
    for (int k = 0; k < TileType::kTileParts; k++) {
      used[k] |= reinterpret_cast<Bits>(left.parts[k]) | reinterpret_cast<Bits>(right.parts[k]);
    }
  });
  for (int k = 1; k < kTilePartsOf<E>; k++) used[0] |= used[k];
  uint32_t all = 0;
  for (size_t lane = 0; lane < sizeof(Bits) / sizeof all; lane++) all |= used[0][lane];
  return (all & 0xffff) == 0;
}

template <class E, class Result>
void SumRoundedLoop(const RoundedSum& sum, size_t count) {
  if constexpr (E::kStoresAnyNan) return SumRoundedVectors<E, Result, false>(sum, 0, count);
  for (size_t begin = 0; begin < count; begin += kWideBlock) {
    const size_t size = count - begin < kWideBlock ? count - begin : kWideBlock;
    if (AreExact<E>(sum.a + begin, sum.b + begin, size)) {
      SumRoundedVectors<E, Result, true>(sum, begin, size);
    } else if (__builtin_expect(FindsNan<E>(sum.a + begin, size) || FindsNan<E>(sum.b + begin, size), 0)) {
      SumRoundedInSteps(sum, begin, size);
    } else {
      SumRoundedVectors<E, Result, false>(sum, begin, size);
    }
  }
}

template <class Isa>
void NarrowFor(DType half, void* dst, const void* src, size_t count) {
  WithHalf<Isa>(half, [=](auto element) { NarrowLoop<decltype(element)>(dst, src, count); });
}

template <class Isa>
void WidenFor(DType half, void* dst, const void* src, size_t count) {
  WithHalf<Isa>(half, [=](auto element) { WidenLoop<decltype(element)>(dst, src, count); });
}

template <class Isa>
void RoundFor(DType half, float* dst, const float* src, size_t count) {
  WithHalf<Isa>(half, [=](auto element) { RoundLoop<decltype(element)>(dst, src, count); });
}

template <class Isa>
void SumWideFor(const WideSum& sum, size_t count) {
  WithHalf<Isa>(sum.half, [&](auto element) { SumWideLoop<decltype(element), decltype(element)>(sum, count); });
}

template <class Isa>
void SumRoundedFor(const RoundedSum& sum, size_t count) {
  WithHalf<Isa>(sum.half, [&](auto element) { SumRoundedLoop<decltype(element), decltype(element)>(sum, count); });
}

}  // namespace hvd
