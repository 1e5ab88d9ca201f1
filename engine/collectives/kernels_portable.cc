// SPDX-License-Identifier: Apache-2.0
// The kernels for any machine: the compiler makes what it can of 16-byte vectors.
#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

// Nothing is inlined here, to keep the code small: the flavours that know their machine are the fast ones.
struct Portable {
  static constexpr int kBytes = 16;
  using F32 = Vec<float, kBytes>;

  static __attribute__((noinline)) void LoadFloat16(const uint16_t* from, F32* parts) {
    float lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = FloatFromFloat16(from[i]);
    std::memcpy(parts, lanes, sizeof lanes);
  }
  static __attribute__((noinline)) void StoreFloat16(uint16_t* to, const F32* parts) {
    float lanes[8];
    std::memcpy(lanes, parts, sizeof lanes);
    for (int i = 0; i < 8; i++) to[i] = Float16FromFloat(lanes[i]);
  }
  static __attribute__((noinline)) void LoadBFloat16(const uint16_t* from, F32* parts) {
    float lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = FloatFromBFloat16(from[i]);
    std::memcpy(parts, lanes, sizeof lanes);
  }
  static __attribute__((noinline)) void StoreBFloat16(uint16_t* to, const F32* parts) {
    float lanes[8];
    std::memcpy(lanes, parts, sizeof lanes);
    for (int i = 0; i < 8; i++) to[i] = BFloat16FromFloat(lanes[i]);
  }
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
