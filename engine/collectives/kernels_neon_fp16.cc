// SPDX-License-Identifier: Apache-2.0
// Kernels for ARM processors with half-precision arithmetic (ARMv8.2 FP16). They compute float16 without conversions
// where the bits equal those of float32 rounded once; everything else uses the NEON kernels.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

struct NativeFloat16Element {
  using Storage = uint16_t;
  using Lane = __fp16;
  using V = Vec<__fp16, 16>;
  static constexpr int kParts = 1;
  static constexpr bool kScalable = false;
  static HVD_INLINE void Load(const uint16_t* from, V* parts) { std::memcpy(parts, from, sizeof(V)); }
  static HVD_INLINE void Store(uint16_t* to, const V* parts) { std::memcpy(to, parts, sizeof(V)); }
};

// Return false if an element is infinite or NaN; apart from that, only numbers that are almost too large can give
// false.
template <class TileType>
HVD_INLINE bool AllFinite(const TileType& tile) {
  static_assert(TileType::kTileParts == 4);
  const NativeFloat16Element::V all = (tile.parts[0] + tile.parts[1]) + (tile.parts[2] + tile.parts[3]);
  return vmaxvq_u32(vreinterpretq_u32_f16(all - all)) == 0;
}

// Compute (a + b) / 2, the average of two ranks. Either the halving is exact, or the sum was (below 2^-13), so nothing
// is rounded twice. Only a sum that overflows although its half would not needs float32.
void HalvedSum(void* dst, void* dst2, const void* const* srcs, size_t count) {
  const auto a = static_cast<const uint16_t*>(srcs[0]), b = static_cast<const uint16_t*>(srcs[1]);
  const auto to = static_cast<uint16_t*>(dst), also_to = static_cast<uint16_t*>(dst2);
  ForEachTile<NativeFloat16Element>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType sum = TileType::Load(a + i, size);
    const TileType right = TileType::Load(b + i, size);
    const NativeFloat16Element::V half = vdupq_n_f16(0.5);
    for (int k = 0; k < TileType::kTileParts; k++) sum.parts[k] = (sum.parts[k] + right.parts[k]) * half;
    if (__builtin_expect(AllFinite(sum), 1)) {
      sum.Store(to + i, size);
      if (also_to != nullptr) sum.Store(also_to + i, size);
    } else {
      const void* const tile[] = {a + i, b + i};
      uint16_t* const second = also_to == nullptr ? nullptr : also_to + i;
      NeonKernels().reduce(DType::kFloat16, ReduceOp::kSum, to + i, second, tile, 2, size, 0.5);
    }
  });
}

// A sum or product of two float16 that is rounded to float32 and then to float16 equals one that is rounded once,
// because float32 has more than twice the bits (24 >= 2 * 11 + 2). That does not hold for three operands, nor with most
// factors.
void Reduce(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
            double postscale) {
  const bool pair = dtype == DType::kFloat16 && nsrcs == 2;
  if (pair && op == ReduceOp::kSum && postscale == 1) {
    ReduceLoop<NativeFloat16Element, SumOp, 2>(dst, dst2, srcs, nsrcs, count, postscale);
  } else if (pair && op == ReduceOp::kSum && postscale == 0.5) {
    HalvedSum(dst, dst2, srcs, count);
  } else if (pair && op == ReduceOp::kProduct && postscale == 1) {
    ReduceLoop<NativeFloat16Element, ProductOp, 2>(dst, dst2, srcs, nsrcs, count, postscale);
  } else {
    NeonKernels().reduce(dtype, op, dst, dst2, srcs, nsrcs, count, postscale);
  }
}

// Conversion between vectors of float16 and of float32.
struct Converting {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;
  static HVD_INLINE float16x8_t Narrowed(const F32* parts) {
    return vcvt_high_f16_f32(vcvt_f16_f32(parts[0]), parts[1]);
  }
  static HVD_INLINE void Widen(float16x8_t halves, F32* parts) {
    parts[0] = vcvt_f32_f16(vget_low_f16(halves));
    parts[1] = vcvt_high_f32_f16(halves);
  }
};

// Sum two sources of which one is still float32: round that one, add in half precision, and widen the sum.
template <bool kHalved>
void SumWidePair(const WideSum& sum, size_t count) {
  const float* const own = sum.Own();
  const uint16_t* const other = sum.Other();
  ForEachTile<NativeFloat16Element>(count, [&](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    using Floats = Tile<Float16Element<Converting>, TileType::kIsWhole>;
    static_assert(Floats::kSize == TileType::kSize);
    PrefetchLanes<Floats>(own + i + kWideBlock);
    __builtin_prefetch(other + i + kWideBlock);
    Floats wide = Floats::LoadLanes(own + i, size);
    TileType total = TileType::Load(other + i, size);
    for (int k = 0; k < TileType::kTileParts; k++) {
      total.parts[k] += Converting::Narrowed(wide.parts + 2 * k);
      if (kHalved) total.parts[k] *= vdupq_n_f16(0.5);
      Converting::Widen(total.parts[k], wide.parts + 2 * k);
    }
    if (kHalved && __builtin_expect(!AllFinite(total), 0)) return SumWideInSteps(sum, i, size);
    total.Store(sum.narrow + i, size);
    wide.StoreLanes(sum.wide + i, size);
  });
}

void SumWide(const WideSum& sum, size_t count) {
  if (sum.half == DType::kFloat16 && sum.postscale == 1) {
    SumWidePair<false>(sum, count);
  } else if (sum.half == DType::kFloat16 && sum.postscale == 0.5) {
    SumWidePair<true>(sum, count);
  } else {
    NeonKernels().sum_wide(sum, count);
  }
}

}  // namespace

const Kernels& NeonFp16Kernels() {
  static const Kernels kernels = [] {
    Kernels all = NeonKernels();
    all.flavour = "neon_fp16";
    all.reduce = Reduce;
    all.sum_wide = SumWide;
    return all;
  }();
  return kernels;
}

}  // namespace hvd
#endif
