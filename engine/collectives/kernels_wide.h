// SPDX-License-Identifier: Apache-2.0
// Loops for float32 tensors that travel as float16 or bfloat16: rounding, widening, and sums in which one source is
// rounded in registers.
#pragma once

#include "collectives/kernels_table.h"
#include "collectives/kernels_tile.h"

namespace hvd {

// Record of NaN, for elements whose stores do not round NaN correctly: a lane is NaN if a source had one there. One
// check at the end of a loop is cheaper than one in every iteration.
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

// Do not inline this, because it is rarely called.
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
void WidenLoop(void* dst, const void* src, size_t count) {
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType::Load(static_cast<const uint16_t*>(src) + i, size).StoreLanes(static_cast<float*>(dst) + i, size);
  });
}

// Store a tile of sums twice: rounded, and the rounded values as float32.
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

// Sum the elements [begin, begin + count) of two sources. The source srcs[own] must have no NaN if E does not round NaN
// correctly. Result rounds the sums.
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

template <class E>
HVD_INLINE bool FindsNan(const float* from, size_t count) {
  NanTrace<E> trace;
  ForEachTile<E>(count, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    trace.Add(std::remove_pointer_t<decltype(tag)>::LoadLanes(from + i, size));
  });
  return trace.Found();
}

// Look for NaN in each block before the block is overwritten.
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

template <class Isa>
void NarrowFor(DType half, void* dst, const void* src, size_t count) {
  WithHalf<Isa>(half, [=](auto element) { NarrowLoop<decltype(element)>(dst, src, count); });
}

template <class Isa>
void WidenFor(DType half, void* dst, const void* src, size_t count) {
  WithHalf<Isa>(half, [=](auto element) { WidenLoop<decltype(element)>(dst, src, count); });
}

template <class Isa>
void SumWideFor(const WideSum& sum, size_t count) {
  WithHalf<Isa>(sum.half, [&](auto element) { SumWideLoop<decltype(element), decltype(element)>(sum, count); });
}

}  // namespace hvd
