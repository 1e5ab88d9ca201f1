// SPDX-License-Identifier: Apache-2.0
// Kernels for x86 processors with AVX-512 F, BW, VL and DQ (servers of 2017 and later).
#if defined(__x86_64__)
#if !defined(__clang__)  // gcc 12 warns about its own header, which leaves a value undefined on purpose
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

struct Avx512 {
  static constexpr int kBytes = 64;
  using F32 = Vec<float, kBytes>;
  struct Float16s {
    __m256i low, high;
  };
  struct BFloat16s {  // each value in the low half of 32 bits, because values are packed only in memory
    __m512i low, high;
  };

  static HVD_INLINE void LoadFloat16(const uint16_t* from, F32* parts) {
    parts[0] = _mm512_cvtph_ps(LoadHalves(from));
    parts[1] = _mm512_cvtph_ps(LoadHalves(from + 16));
  }
  static HVD_INLINE Float16s NarrowFloat16(const F32* parts) {
    return {_mm512_cvtps_ph(parts[0], _MM_FROUND_TO_NEAREST_INT), _mm512_cvtps_ph(parts[1], _MM_FROUND_TO_NEAREST_INT)};
  }
  static HVD_INLINE void WidenFloat16(Float16s halves, F32* parts) {
    parts[0] = _mm512_cvtph_ps(halves.low);
    parts[1] = _mm512_cvtph_ps(halves.high);
  }
  static HVD_INLINE void Write(uint16_t* to, Float16s halves) {
    StoreHalves(to, halves.low);
    StoreHalves(to + 16, halves.high);
  }

  static HVD_INLINE void LoadBFloat16(const uint16_t* from, F32* parts) {
    for (int k = 0; k < 2; k++) {
      const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadHalves(from + 16 * k)), 16);
      parts[k] = _mm512_castsi512_ps(bits);
    }
  }
  static HVD_INLINE BFloat16s NarrowBFloat16(const F32* parts) { return {Rounded(parts[0]), Rounded(parts[1])}; }
  static HVD_INLINE void WidenBFloat16(BFloat16s halves, F32* parts) {
    parts[0] = _mm512_castsi512_ps(_mm512_slli_epi32(halves.low, 16));
    parts[1] = _mm512_castsi512_ps(_mm512_slli_epi32(halves.high, 16));
  }
  static HVD_INLINE void Write(uint16_t* to, BFloat16s halves) {
    StoreHalves(to, _mm512_cvtepi32_epi16(halves.low));
    StoreHalves(to + 16, _mm512_cvtepi32_epi16(halves.high));
  }

  // Add instead of multiplying, because a product that is too small for a float may take a hundred times as long.
  static HVD_INLINE F32 TraceOfNan(F32 trace, F32 a, F32 b) { return trace + (a + b); }

  static HVD_INLINE void Widen(F32 part, Vec<double, kBytes>* out) {
    out[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(part));
    out[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(part, 1));
  }

 private:
  static HVD_INLINE __m256i LoadHalves(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HVD_INLINE void StoreHalves(uint16_t* to, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static HVD_INLINE __m512i Rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_srli_epi32(rounded, 16);
  }
};

}  // namespace

const Kernels& Avx512Kernels() {
  static constexpr Kernels kernels = KernelsFor<Avx512>("avx512");
  return kernels;
}

}  // namespace hvd
#endif
