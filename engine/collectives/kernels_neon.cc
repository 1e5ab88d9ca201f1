// SPDX-License-Identifier: Apache-2.0
// The kernels for every 64-bit ARM.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

struct Neon {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;

  static HVD_INLINE void LoadFloat16(const uint16_t* from, F32* parts) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(from));
    parts[0] = vcvt_f32_f16(vget_low_f16(halves));
    parts[1] = vcvt_high_f32_f16(halves);
  }
  static HVD_INLINE void StoreFloat16(uint16_t* to, const F32* parts) {
    const float16x8_t halves = vcvt_high_f16_f32(vcvt_f16_f32(parts[0]), parts[1]);
    vst1q_u16(to, vreinterpretq_u16_f16(halves));
  }

  static HVD_INLINE void LoadBFloat16(const uint16_t* from, F32* parts) {
    const uint16x8_t halves = vld1q_u16(from);
    const uint16x8_t zeros = vdupq_n_u16(0);
    parts[0] = vreinterpretq_f32_u16(vzip1q_u16(zeros, halves));
    parts[1] = vreinterpretq_f32_u16(vzip2q_u16(zeros, halves));
  }
  static HVD_INLINE void StoreBFloat16(uint16_t* to, const F32* parts) {
    const uint32x4_t below_half = vdupq_n_u32(0x7fff);
    const uint16x4_t low = vaddhn_u32(WithTieToEven(parts[0]), below_half);
    vst1q_u16(to, vaddhn_high_u32(low, WithTieToEven(parts[1]), below_half));
  }

  static HVD_INLINE void Widen(F32 part, Vec<double, kBytes>* out) {
    out[0] = vcvt_f64_f32(vget_low_f32(part));
    out[1] = vcvt_high_f64_f32(part);
  }

 private:
  // One more where the last bit that stays is odd (a test gives -1).
  static HVD_INLINE uint32x4_t WithTieToEven(float32x4_t value) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    return vsubq_u32(bits, vtstq_u32(bits, vdupq_n_u32(0x10000)));
  }
};

}  // namespace

const Kernels& NeonKernels() {
  static constexpr Kernels kernels = KernelsFor<Neon>("neon");
  return kernels;
}

}  // namespace hvd
#endif
