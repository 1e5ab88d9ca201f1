// SPDX-License-Identifier: Apache-2.0
// Kernels for all 64-bit ARM processors.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

struct Neon {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;

  // Use memcpy, because data in messages may be unaligned.
  static HVD_INLINE uint16x8_t Read(const uint16_t* from) {
    uint16x8_t halves;
    std::memcpy(&halves, from, sizeof halves);
    return halves;
  }
  static HVD_INLINE void Write(uint16_t* to, uint16x8_t halves) { std::memcpy(to, &halves, sizeof halves); }

  static HVD_INLINE void LoadFloat16(const uint16_t* from, F32* parts) { WidenFloat16(Read(from), parts); }
  static HVD_INLINE void WidenFloat16(uint16x8_t bits, F32* parts) {
    const float16x8_t halves = vreinterpretq_f16_u16(bits);
    parts[0] = vcvt_f32_f16(vget_low_f16(halves));
    parts[1] = vcvt_high_f32_f16(halves);
  }
  static HVD_INLINE uint16x8_t NarrowFloat16(const F32* parts) {
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(parts[0]), parts[1]));
  }

  static HVD_INLINE void LoadBFloat16(const uint16_t* from, F32* parts) { WidenBFloat16(Read(from), parts); }
  static HVD_INLINE void WidenBFloat16(uint16x8_t halves, F32* parts) {
    const uint16x8_t zeros = vdupq_n_u16(0);
    parts[0] = vreinterpretq_f32_u16(vzip1q_u16(zeros, halves));
    parts[1] = vreinterpretq_f32_u16(vzip2q_u16(zeros, halves));
  }
  static HVD_INLINE uint16x8_t NarrowBFloat16(const F32* parts) {
    // Rounding to nearest even adds 0x7fff, and 1 if the last remaining bit is odd. The instruction "subtract, add
    // 0x8000 and take the upper half" does all that but changes the sign: rounding -x down is rounding x up, and so a
    // tie goes the other way.
    const uint32x4_t first = vreinterpretq_u32_f32(parts[0]), second = vreinterpretq_u32_f32(parts[1]);
    const uint16x4_t low = vrsubhn_u32(MinusOneIfOdd(first), first);
    const uint16x8_t negative = vrsubhn_high_u32(low, MinusOneIfOdd(second), second);
    return vsubq_u16(vdupq_n_u16(0), negative);  // one instruction; a signed negation could overflow
  }

  static HVD_INLINE F32 TraceOfNan(F32 trace, F32 a, F32 b) { return vfmaq_f32(trace, a, b); }

  static HVD_INLINE void Widen(F32 part, Vec<double, kBytes>* out) {
    out[0] = vcvt_f64_f32(vget_low_f32(part));
    out[1] = vcvt_high_f64_f32(part);
  }

 private:
  static HVD_INLINE uint32x4_t MinusOneIfOdd(uint32x4_t bits) { return vtstq_u32(bits, vdupq_n_u32(0x10000)); }
};

// Sums of two bfloat16, rounded by independent instructions for both halves. Such a sum either has its lowest bit
// clear, or it lies within 1/256 of the last place from a bfloat16 and far from the middle of two, because the smaller
// summand has only 8 bits. So the lowest bit carries no information, and the last remaining bit may take its place: the
// dropped part then exceeds one half where it did before, and for a tie where that bit is odd. This also holds for half
// the sum, subnormal or not.
struct BFloat16PairElement : BFloat16Element<Neon> {
  static HVD_INLINE void Store(uint16_t* to, const V* parts) { Write(to, Narrowed(parts)); }
  static HVD_INLINE uint16x8_t Narrowed(const V* parts) {
    const uint16x8_t first = vreinterpretq_u16_f32(parts[0]), second = vreinterpretq_u16_f32(parts[1]);
    const uint16x8_t stays = vuzp2q_u16(first, second), dropped = vuzp1q_u16(first, second);
    const uint16x8_t rest = vbslq_u16(vdupq_n_u16(1), stays, dropped);
    return vsubq_u16(stays, vcgtq_u16(rest, vdupq_n_u16(0x8000)));  // a comparison gives -1 for true
  }
};

void ReduceOnNeon(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
                  double postscale) {
  const bool pair = dtype == DType::kBFloat16 && op == ReduceOp::kSum && nsrcs == 2;
  if (pair && (postscale == 1 || postscale == 0.5)) {
    ReduceLoop<BFloat16PairElement, SumOp, 2>(dst, dst2, srcs, nsrcs, count, postscale);
  } else {
    ReduceFor<Neon>(dtype, op, dst, dst2, srcs, nsrcs, count, postscale);
  }
}

void SumWideOnNeon(const WideSum& sum, size_t count) {
  if (sum.half == DType::kBFloat16 && (sum.postscale == 1 || sum.postscale == 0.5)) {
    SumWideLoop<BFloat16Element<Neon>, BFloat16PairElement>(sum, count);
  } else {
    SumWideFor<Neon>(sum, count);
  }
}

}  // namespace

const Kernels& NeonKernels() {
  static constexpr Kernels kernels = [] {
    Kernels all = KernelsFor<Neon>("neon");
    all.reduce = ReduceOnNeon;
    all.sum_wide = SumWideOnNeon;
    return all;
  }();
  return kernels;
}

}  // namespace hvd
#endif
