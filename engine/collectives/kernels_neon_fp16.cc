// SPDX-License-Identifier: Apache-2.0
// The kernels for ARM processors with half precision arithmetic (ARMv8.2 FP16): float16 without conversions where that
// gives the same bits as float32 rounded once; all else is plain NEON.
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

// (a + b) / 2, the average of two ranks. Halving is exact, or the sum was (below 2^-13), so again nothing is rounded
// twice; only a sum that overflows although its half would not needs float32.
void HalvedSum(void* dst, void* dst2, const void* const* srcs, size_t count) {
  const auto a = static_cast<const uint16_t*>(srcs[0]), b = static_cast<const uint16_t*>(srcs[1]);
  const auto to = static_cast<uint16_t*>(dst), also_to = static_cast<uint16_t*>(dst2);
  ForEachTile<NativeFloat16Element>(count, [=](size_t i, size_t size, auto* tag) __attribute__((always_inline)) {
    using TileType = std::remove_pointer_t<decltype(tag)>;
    TileType sum = TileType::Load(a + i, size);
    const TileType right = TileType::Load(b + i, size);
    const NativeFloat16Element::V half = vdupq_n_f16(0.5);
    for (int k = 0; k < TileType::kTileParts; k++) sum.parts[k] = (sum.parts[k] + right.parts[k]) * half;
    // Infinite or NaN if one of them is, and else at most for numbers that are almost too large.
    static_assert(TileType::kTileParts == 4);
    const NativeFloat16Element::V all = (sum.parts[0] + sum.parts[1]) + (sum.parts[2] + sum.parts[3]);
    if (__builtin_expect(vmaxvq_u32(vreinterpretq_u32_f16(all - all)) == 0, 1)) {
      sum.Store(to + i, size);
      if (also_to != nullptr) sum.Store(also_to + i, size);
    } else {
      const void* const tile[] = {a + i, b + i};
      uint16_t* const second = also_to == nullptr ? nullptr : also_to + i;
      NeonKernels().reduce(DType::kFloat16, ReduceOp::kSum, to + i, second, tile, 2, size, 0.5);
    }
  });
}

// A sum or product of two float16 rounded to float32 and then to float16 is the same as rounded once, because float32
// has more than twice the bits (24 >= 2 * 11 + 2). That is not so for three, nor with most factors.
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

}  // namespace

const Kernels& NeonFp16Kernels() {
  static const Kernels kernels = [] {
    Kernels all = NeonKernels();
    all.flavour = "neon_fp16";
    all.reduce = Reduce;
    return all;
  }();
  return kernels;
}

}  // namespace hvd
#endif
