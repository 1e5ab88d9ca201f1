// SPDX-License-Identifier: Apache-2.0
// Codecs for all 64-bit ARM processors.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "codecs/codecs_impl.h"

namespace hvd {
namespace {

struct Neon {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;
  using I32 = Vec<int32_t, kBytes>;

  static HVD_INLINE uint8x16_t LowestBytes(const I32* parts) {
    const uint16x8_t low = vcombine_u16(Half(parts[0]), Half(parts[1]));
    const uint16x8_t high = vcombine_u16(Half(parts[2]), Half(parts[3]));
    return vcombine_u8(vmovn_u16(low), vmovn_u16(high));
  }

  static HVD_INLINE uint32_t Mask(const I32* parts) {
    const uint8x16_t weights = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vandq_u8(LowestBytes(parts), weights);
    const uint32_t low = vaddv_u8(vget_low_u8(bits)), high = vaddv_u8(vget_high_u8(bits));
    return low | high << 8;
  }

  static HVD_INLINE void StoreBytes(uint8_t* to, const I32* parts) { vst1q_u8(to, LowestBytes(parts)); }

  static HVD_INLINE void LoadBytes(const uint8_t* from, F32* parts) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    parts[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    parts[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    parts[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    parts[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
  }

  static HVD_INLINE size_t Append(const F32* parts, uint32_t mask, const Selection& to, size_t at, int32_t index) {
    return AppendOneByOne<Neon>(parts, mask, to, at, index);
  }

 private:
  static HVD_INLINE uint16x4_t Half(I32 part) { return vmovn_u32(reinterpret_cast<uint32x4_t>(part)); }
};

}  // namespace

const Codecs& NeonCodecs() {
  static constexpr Codecs codecs = CodecsFor<Neon>("neon");
  return codecs;
}

}  // namespace hvd
#endif
