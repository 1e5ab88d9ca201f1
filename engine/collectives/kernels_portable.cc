// SPDX-License-Identifier: Apache-2.0
// Kernels for any machine: the compiler translates 16-byte vectors as well as it can.
#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

// Do not inline anything, to keep the code small, because common machines use the faster flavours.
struct Portable {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;

  struct Halves {
    uint16_t bits[8];
  };
  static HVD_INLINE void Write(uint16_t* to, Halves halves) { std::memcpy(to, halves.bits, sizeof halves.bits); }
  static HVD_INLINE Halves Read(const uint16_t* from) {
    Halves halves;
    std::memcpy(halves.bits, from, sizeof halves.bits);  // the address may be unaligned
    return halves;
  }

  static HVD_INLINE void LoadFloat16(const uint16_t* from, F32* parts) { WidenFloat16(Read(from), parts); }
  static __attribute__((noinline)) void WidenFloat16(const Halves& halves, F32* parts) {
    float lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = FloatFromFloat16(halves.bits[i]);
    std::memcpy(parts, lanes, sizeof lanes);
  }
  static __attribute__((noinline)) Halves NarrowFloat16(const F32* parts) {
    float lanes[8];
    std::memcpy(lanes, parts, sizeof lanes);
    Halves halves;
    for (int i = 0; i < 8; i++) halves.bits[i] = Float16FromFloat(lanes[i]);
    return halves;
  }
  static HVD_INLINE void LoadBFloat16(const uint16_t* from, F32* parts) { WidenBFloat16(Read(from), parts); }
  static __attribute__((noinline)) void WidenBFloat16(const Halves& halves, F32* parts) {
    float lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = FloatFromBFloat16(halves.bits[i]);
    std::memcpy(parts, lanes, sizeof lanes);
  }
  static __attribute__((noinline)) Halves NarrowBFloat16(const F32* parts) {
    float lanes[8];
    std::memcpy(lanes, parts, sizeof lanes);
    Halves halves;
    for (int i = 0; i < 8; i++) halves.bits[i] = BFloat16FromFloat(lanes[i]);
    return halves;
  }
  static HVD_INLINE F32 TraceOfNan(F32 trace, F32 a, F32 b) { return trace + (a + b); }

  static HVD_INLINE void Widen(F32 part, Vec<double, kBytes>* out) {
    out[0] = Vec<double, kBytes>{part[0], part[1]};
    out[1] = Vec<double, kBytes>{part[2], part[3]};
  }
};

}  // namespace

const Kernels& PortableKernels() {
  static constexpr Kernels kernels = KernelsFor<Portable>("portable");
  return kernels;
}

}  // namespace hvd
