// SPDX-License-Identifier: Apache-2.0
// The loops of kernels.h, written once and compiled for each instruction set (kernels_<flavour>.cc).
// A loop works on tiles: all sources of a tile are read before it is stored, so a destination may be a source.
#pragma once

#include <limits>

#include "collectives/kernels_simd.h"
#include "collectives/kernels_table.h"

namespace hvd {

// How many vectors of lanes one turn of a loop works on: enough to hide the latency of the arithmetic, which is long
// where elements must be converted, and no more than there are registers for.
template <class E>
constexpr int kTilePartsOf = E::kParts == 2 && sizeof(typename E::V) == 16 ? 8 : 4;

// How far ahead of its sources, in elements, a loop asks for memory. Where elements are converted, the processor looks
// too few turns ahead to hide all that the caches below the first take.
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

// The comparison that is true for a NaN on the left and false for one on the right lets both through.
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

// Signed integers wrap, so they are added and multiplied as unsigned ones.
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

// The factor in the lanes' own type, once; integers are scaled in double.
template <class E>
using FactorOf = std::conditional_t<std::is_integral_v<typename E::Lane>, double, typename E::Lane>;

// Not inlined: it is large, and the same for every operation.
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

// The elements of one turn, or a rest of which only `size` elements exist.
template <class E, bool kWhole>
struct Tile {
  using Storage = typename E::Storage;
  using V = typename E::V;
  static constexpr int kTileParts = kTilePartsOf<E>;
  static constexpr int kVectors = kTileParts / E::kParts;
  static constexpr int kWidth = sizeof(V) / sizeof(Storage);
  static constexpr size_t kSize = kVectors * kWidth;
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

  // The same for elements that are stored as what the lanes are.
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

// Calls f(offset, size, a null pointer to the type of tile) for tiles that cover [0, count).
template <class E, class F>
HVD_INLINE void ForEachTile(size_t count, F&& f) {
  constexpr size_t kSize = Tile<E, true>::kSize;
  size_t i = 0;
  for (; count - i >= kSize; i += kSize) f(i, kSize, static_cast<Tile<E, true>*>(nullptr));
  if (i < count) f(i, count - i, static_cast<Tile<E, false>*>(nullptr));
}

// kSources is the number of sources where it is known while compiling, else 0.
template <class E, class Op, int kSources>
void ReduceLoop(void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count, double postscale) {
  using Storage = typename E::Storage;
  using Lane = typename E::Lane;
  const int n = kSources > 0 ? kSources : nsrcs;
  const void* known[kSources > 0 ? kSources : 1];  // a copy, since the stores below could change srcs for all gcc knows
  for (int s = 0; s < kSources; s++) known[s] = srcs[s];
  const void* const* from = kSources > 0 ? known : srcs;
  // A compiler that knew what the flag means would compare again in every turn, in a unit that is needed for the sums.
  int scaled = postscale != 1;
  __asm__("" : "+r"(scaled));
  const auto factor = static_cast<FactorOf<E>>(postscale);
  const auto source = [from](int s) { return static_cast<const Storage*>(from[s]); };

  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    if constexpr (kAheadOf<E> > 0) {
      for (int s = 0; s < n; s++) __builtin_prefetch(source(s) + i + kAheadOf<E>);
    }
    TileType sum = TileType::Load(source(0) + i, size);
    for (int s = 1; s < n; s++) {
      const TileType next = TileType::Load(source(s) + i, size);
      for (int k = 0; k < TileType::kTileParts; k++) sum.parts[k] = Combine<Op, Lane>(sum.parts[k], next.parts[k]);
    }
    if constexpr (E::kScalable) {
      if (scaled) sum = Scaled<E>(sum, factor);
    }
    sum.Store(static_cast<Storage*>(dst) + i, size);
    if (dst2 != nullptr) sum.Store(static_cast<Storage*>(dst2) + i, size);
  });
}

// Gradients get loops of their own for up to four sources, other types for two: each loop costs some kilobytes.
template <class E, class Op>
HVD_INLINE void ReduceBySources(void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
                                double postscale) {
  constexpr bool kGradients = std::is_floating_point_v<typename E::Lane> && sizeof(typename E::Storage) > 1;
  if (nsrcs == 2) return ReduceLoop<E, Op, 2>(dst, dst2, srcs, nsrcs, count, postscale);
  if constexpr (kGradients) {
    if (nsrcs == 3) return ReduceLoop<E, Op, 3>(dst, dst2, srcs, nsrcs, count, postscale);
    if (nsrcs == 4) return ReduceLoop<E, Op, 4>(dst, dst2, srcs, nsrcs, count, postscale);
  }
  ReduceLoop<E, Op, 0>(dst, dst2, srcs, nsrcs, count, postscale);
}

template <class E>
void ReduceByOp(ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
                double postscale) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceBySources<E, SumOp>(dst, dst2, srcs, nsrcs, count, postscale);
    case ReduceOp::kProduct:
      return ReduceBySources<E, ProductOp>(dst, dst2, srcs, nsrcs, count, postscale);
    case ReduceOp::kMin:
      return ReduceBySources<E, MinOp>(dst, dst2, srcs, nsrcs, count, postscale);
    case ReduceOp::kMax:
      return ReduceBySources<E, MaxOp>(dst, dst2, srcs, nsrcs, count, postscale);
    default:
      return;
  }
}

template <class Isa>
void ReduceFor(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
               double postscale) {
  WithElement<Isa>(dtype,
                   [=](auto element) { ReduceByOp<decltype(element)>(op, dst, dst2, srcs, nsrcs, count, postscale); });
}

template <class E>
void LinearCombinationLoop(void* dst, const void* a, double ca, const void* b, double cb, size_t count) {
  using Storage = typename E::Storage;
  const auto left_factor = static_cast<FactorOf<E>>(ca), right_factor = static_cast<FactorOf<E>>(cb);
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType sum = Scaled<E>(TileType::Load(static_cast<const Storage*>(a) + i, size), left_factor);
    const TileType right = Scaled<E>(TileType::Load(static_cast<const Storage*>(b) + i, size), right_factor);
    for (int k = 0; k < TileType::kTileParts; k++) sum.parts[k] += right.parts[k];
    sum.Store(static_cast<Storage*>(dst) + i, size);
  });
}

template <class Isa>
void LinearCombinationFor(DType dtype, void* dst, const void* a, double ca, const void* b, double cb, size_t count) {
  WithFloating<Isa>(dtype, [=](auto element) { LinearCombinationLoop<decltype(element)>(dst, a, ca, b, cb, count); });
}

// Element i is added to partial sum i % kPartials: the same order, and so the same bits, for vectors of any size.
constexpr int kPartials = 8;

// The lanes of a tile as doubles, in their order.
template <class Isa, class TileType, class Doubles>
HVD_INLINE void Widen(const TileType& tile, Doubles* out) {
  for (int k = 0; k < TileType::kTileParts; k++) {
    if constexpr (std::is_same_v<typename TileType::V, Doubles>) {
      out[k] = tile.parts[k];
    } else {
      Isa::Widen(tile.parts[k], out + 2 * k);
    }
  }
}

template <class Isa, class E>
void DotProductsLoop(const void* a, const void* b, size_t count, double out[3]) {
  using Storage = typename E::Storage;
  using Doubles = Vec<double, Isa::kBytes>;
  constexpr int kSums = kPartials * sizeof(double) / sizeof(Doubles);
  constexpr int kWide = kTilePartsOf<E> * sizeof(double) / sizeof(typename E::Lane);  // vectors of doubles in a tile
  Doubles ab[kSums] = {}, aa[kSums] = {}, bb[kSums] = {};
  ForEachTile<E>(count, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    Doubles x[kWide], y[kWide];
    Widen<Isa>(TileType::Load(static_cast<const Storage*>(a) + i, size), x);
    Widen<Isa>(TileType::Load(static_cast<const Storage*>(b) + i, size), y);
    for (int k = 0; k < kWide; k++) {
      ab[k % kSums] += x[k] * y[k];
      aa[k % kSums] += x[k] * x[k];
      bb[k % kSums] += y[k] * y[k];
    }
  });
  const Doubles* const sums[3] = {ab, aa, bb};
  for (int s = 0; s < 3; s++) {
    double partial[kPartials];
    std::memcpy(partial, sums[s], sizeof partial);
    out[s] = 0;
    for (const double value : partial) out[s] += value;
  }
}

template <class Isa>
void DotProductsFor(DType dtype, const void* a, const void* b, size_t count, double out[3]) {
  WithFloating<Isa>(dtype, [=](auto element) { DotProductsLoop<Isa, decltype(element)>(a, b, count, out); });
}

// Whether a sum is NaN in any lane, as it is if one of the summands was.
template <class V>
HVD_INLINE bool HasNan(V sum) {
  const auto nan = sum != sum;
  uint64_t words[sizeof nan / sizeof(uint64_t)], any = 0;
  std::memcpy(words, &nan, sizeof nan);
  for (uint64_t word : words) any |= word;
  return any != 0;
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
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    const TileType tile = TileType::LoadLanes(from + i, size);
    tile.Store(to + i, size);
    if constexpr (!E::kStoresAnyNan) {
      auto sum = tile.parts[0] + tile.parts[1];
      for (int k = 2; k < TileType::kTileParts; k += 2) sum += tile.parts[k] + tile.parts[k + 1];
      if (HasNan(sum)) NarrowOneByOne<E>(to + i, from + i, size);
    }
  });
}

template <class E>
void WidenLoop(void* dst, const void* src, size_t count) {
  ForEachTile<E>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType::Load(static_cast<const uint16_t*>(src) + i, size).StoreLanes(static_cast<float*>(dst) + i, size);
  });
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
constexpr Kernels KernelsFor(const char* flavour) {
  return {flavour, ReduceFor<Isa>, DotProductsFor<Isa>, LinearCombinationFor<Isa>, NarrowFor<Isa>, WidenFor<Isa>};
}

}  // namespace hvd
