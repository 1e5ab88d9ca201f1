// SPDX-License-Identifier: Apache-2.0
// The kernels for ARM processors with half precision arithmetic (ARMv8.2 FP16): float16 without conversions where that
// gives the same bits as float32 rounded once; all else is plain NEON.
#if defined(__aarch64__)
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

// A sum or product of two float16 rounded to float32 and then to float16 is the same as rounded once, because float32
// has more than twice the bits (24 >= 2 * 11 + 2). That is not so for three, nor with a factor.
bool SameWithoutFloat32(ReduceOp op, int nsrcs, double postscale) {
  return postscale == 1 && (nsrcs == 2 || op == ReduceOp::kMin || op == ReduceOp::kMax);
}

void Reduce(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
            double postscale) {
  if (dtype == DType::kFloat16 && SameWithoutFloat32(op, nsrcs, postscale)) {
    ReduceByOp<NativeFloat16Element>(op, dst, dst2, srcs, nsrcs, count, 1);
  } else {
    NeonKernels().reduce(dtype, op, dst, dst2, srcs, nsrcs, count, postscale);
  }
}

}  // namespace

const Kernels& NeonFp16Kernels() {
  static const Kernels kernels = {"neon_fp16", Reduce, NeonKernels().dot_products, NeonKernels().linear_combination};
  return kernels;
}

}  // namespace hvd
#endif
