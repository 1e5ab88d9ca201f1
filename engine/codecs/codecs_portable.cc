// SPDX-License-Identifier: Apache-2.0
// Codecs for any machine: the compiler translates 16-byte vectors as well as it can.
#include "codecs/codecs_impl.h"

namespace hvd {
namespace {

struct Portable {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;
  using I32 = Vec<int32_t, kBytes>;

  static HVD_INLINE uint32_t Mask(const I32* parts) {
    const I32 weights = {1, 2, 4, 8};
    uint32_t mask = 0;
    for (int k = 0; k < 4; k++) {
      const I32 bits = parts[k] & weights;
      mask |= static_cast<uint32_t>(bits[0] | bits[1] | bits[2] | bits[3]) << 4 * k;
    }
    return mask;
  }

  static HVD_INLINE void StoreBytes(uint8_t* to, const I32* parts) {
    for (int i = 0; i < 16; i++) to[i] = static_cast<uint8_t>(parts[i / 4][i % 4]);
  }

  static HVD_INLINE void LoadBytes(const uint8_t* from, F32* parts) {
    for (int k = 0; k < 4; k++) {
      I32 lanes;
      for (int i = 0; i < 4; i++) lanes[i] = static_cast<int8_t>(from[4 * k + i]);
      parts[k] = __builtin_convertvector(lanes, F32);
    }
  }

  static HVD_INLINE size_t Append(const F32* parts, uint32_t mask, const Selection& to, size_t at, int32_t index) {
    return AppendOneByOne<Portable>(parts, mask, to, at, index);
  }
};

}  // namespace

const Codecs& PortableCodecs() {
  static constexpr Codecs codecs = CodecsFor<Portable>("portable");
  return codecs;
}

}  // namespace hvd
