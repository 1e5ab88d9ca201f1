// SPDX-License-Identifier: Apache-2.0
// Building blocks of all kernels: tiles of several vectors, and the arithmetic on their lanes. All sources of a tile
// are read before it is stored, so a destination may be a source.
#pragma once

#include <limits>

#include "collectives/kernels_simd.h"

namespace hvd {

// Vectors of lanes per iteration of a loop. They must hide the latency of the arithmetic, which is long if elements are
// converted, without exceeding the number of registers.
template <class E>
constexpr int kTilePartsOf = E::kParts == 2 && sizeof(typename E::V) == 16 ? 8 : 4;

// Prefetch distance of a loop, in elements. Where elements are converted, the processor looks too few iterations ahead
// to hide the latency of the caches below the first level.
template <class E>
constexpr size_t kAheadOf = E::kParts == 2 && sizeof(typename E::V) == 16 ? 512 / sizeof(typename E::Storage) : 0;

struct SumOp {
  template <class Lane, class V>
  static HVD_INLINE V Apply(V a, V b) {
    return a + b;
  }
};

struct ProductOp {
  template <class Lane, class V>
  static HVD_INLINE V Apply(V a, V b) {
    return a * b;
  }
};

// Minimum. The comparison is true for a NaN on the left and false for one on the right, so that a NaN on either side is
// kept.
struct MinOp {
  template <class Lane, class V>
  static HVD_INLINE V Apply(V a, V b) {
    if constexpr (std::is_integral_v<Lane>) return a < b ? a : b;
    return ((a < b) | (a != a)) ? a : b;
  }
};

struct MaxOp {
  template <class Lane, class V>
  static HVD_INLINE V Apply(V a, V b) {
    if constexpr (std::is_integral_v<Lane>) return a > b ? a : b;
    return ((a > b) | (a != a)) ? a : b;
  }
};

// Combine two vectors. Signed integers must wrap, so they are added and multiplied as unsigned ones.
template <class Op, class Lane, class V>
HVD_INLINE V Combine(V a, V b) {
  constexpr bool kWraps = std::is_same_v<Op, SumOp> || std::is_same_v<Op, ProductOp>;
  if constexpr (kWraps && std::is_integral_v<Lane>) {
    using U = Vec<std::make_unsigned_t<Lane>, sizeof(V)>;
    return reinterpret_cast<V>(Op::template Apply<Lane>(reinterpret_cast<U>(a), reinterpret_cast<U>(b)));
  } else {
    return Op::template Apply<Lane>(a, b);
  }
}

template <class T>
HVD_INLINE T TruncateAndClamp(double value) {
  // The bounds are exact in double: one past the largest value is a power of two.
  constexpr double kEnd = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  constexpr T kLargest = std::numeric_limits<T>::max();
  if (value >= kEnd) return kLargest;
  if (value <= static_cast<double>(kLowest)) return kLowest;
  return value == value ? static_cast<T>(value) : T{0};
}

// Type of a factor: that of the lanes, but double for integers.
template <class E>
using FactorOf = std::conditional_t<std::is_integral_v<typename E::Lane>, double, typename E::Lane>;

// Do not inline this, because it is large and does not depend on the operation.
template <class E>
__attribute__((noinline)) void ScaleIntegers(typename E::V* parts, double factor) {
  using Lane = typename E::Lane;
  Lane lanes[kTilePartsOf<E> * sizeof(typename E::V) / sizeof(Lane)];
  std::memcpy(lanes, parts, sizeof lanes);
  for (Lane& lane : lanes) lane = TruncateAndClamp<Lane>(static_cast<double>(lane) * factor);
  std::memcpy(parts, lanes, sizeof lanes);
}

template <class E, class TileType>
HVD_INLINE TileType Scaled(TileType tile, FactorOf<E> factor) {
  if constexpr (std::is_integral_v<typename E::Lane>) {
    ScaleIntegers<E>(tile.parts, factor);
  } else {
    for (auto& part : tile.parts) part *= factor;
  }
  return tile;
}

// Elements of one iteration. In the last one, only `size` elements may exist.
template <class E, bool kWhole>
struct Tile {
  using Storage = typename E::Storage;
  using V = typename E::V;
  static constexpr int kTileParts = kTilePartsOf<E>;
  static constexpr int kVectors = kTileParts / E::kParts;
  static constexpr int kWidth = sizeof(V) / sizeof(Storage);
  static constexpr size_t kSize = kVectors * kWidth;
  static constexpr bool kIsWhole = kWhole;
  V parts[kTileParts];

  static HVD_INLINE Tile Load(const Storage* from, size_t size) {
    Storage padded[kSize];
    if constexpr (!kWhole) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, from, size * sizeof(Storage));
      from = padded;
    }
    Tile tile;
    for (int k = 0; k < kVectors; k++) E::Load(from + k * kWidth, tile.parts + k * E::kParts);
    return tile;
  }

  HVD_INLINE void Store(Storage* to, size_t size) const {
    Storage padded[kSize];
    Storage* const whole = kWhole ? to : padded;
    for (int k = 0; k < kVectors; k++) E::Store(whole + k * kWidth, parts + k * E::kParts);
    if constexpr (!kWhole) std::memcpy(to, padded, size * sizeof(Storage));
  }

  // Types for LoadLanes and StoreLanes, which transfer elements that are stored in the type of the lanes.
  using Lane = typename E::Lane;
  static constexpr int kLanes = sizeof(V) / sizeof(Lane);

  static HVD_INLINE Tile LoadLanes(const Lane* from, size_t size) {
    Lane padded[kSize];
    if constexpr (!kWhole) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, from, size * sizeof(Lane));
      from = padded;
    }
    Tile tile;
    for (int k = 0; k < kTileParts; k++) std::memcpy(&tile.parts[k], from + k * kLanes, sizeof(V));
    return tile;
  }

  HVD_INLINE void StoreLanes(Lane* to, size_t size) const {
    Lane padded[kSize];
    Lane* const whole = kWhole ? to : padded;
    for (int k = 0; k < kTileParts; k++) std::memcpy(whole + k * kLanes, &parts[k], sizeof(V));
    if constexpr (!kWhole) std::memcpy(to, padded, size * sizeof(Lane));
  }
};

// Call f(offset, size, a null pointer to the type of tile) for tiles that cover [0, count).
template <class E, class F>
HVD_INLINE void ForEachTile(size_t count, F&& f) {
  constexpr size_t kSize = Tile<E, true>::kSize;
  size_t i = 0;
  for (; count - i >= kSize; i += kSize) f(i, kSize, static_cast<Tile<E, true>*>(nullptr));
  if (i < count) f(i, count - i, static_cast<Tile<E, false>*>(nullptr));
}

}  // namespace hvd
