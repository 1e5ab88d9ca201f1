// SPDX-License-Identifier: Apache-2.0
// Loops of kernels.h, written once and compiled for each instruction set (kernels_<flavour>.cc).
#pragma once

#include "collectives/kernels_table.h"
#include "collectives/kernels_tile.h"
#include "collectives/kernels_wide.h"

namespace hvd {

// Reduce `count` elements. kSources is the number of sources if it is known at compile time, otherwise 0.
template <class E, class Op, int kSources>
void ReduceLoop(void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count, double postscale) {
  using Storage = typename E::Storage;
  using Lane = typename E::Lane;
  const int n = kSources > 0 ? kSources : nsrcs;
  // Copy the pointers, because gcc assumes that the stores below could change srcs.
  const void* known[kSources > 0 ? kSources : 1];
  for (int s = 0; s < kSources; s++) known[s] = srcs[s];
  const void* const* from = kSources > 0 ? known : srcs;
  // Hide the meaning of the flag from the compiler. Otherwise it would repeat the comparison in every iteration, in a
  // unit that the sums need.
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

// Use loops for a fixed number of sources where there are few: up to four for the types of gradients, two for other
// types. There are no more such loops, because each adds some kilobytes of code.
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

// Number of partial sums: element i is added to partial sum i % kPartials, so that the order, and with it the bits, do
// not depend on the vector size.
constexpr int kPartials = 8;

// Convert the lanes of a tile to doubles, in order.
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

template <class Isa>
constexpr Kernels KernelsFor(const char* flavour) {
  return {flavour,        ReduceFor<Isa>, DotProductsFor<Isa>, LinearCombinationFor<Isa>,
          NarrowFor<Isa>, WidenFor<Isa>,  SumWideFor<Isa>};
}

}  // namespace hvd
