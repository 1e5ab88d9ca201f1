// SPDX-License-Identifier: Apache-2.0
// Kernels for x86 processors with AVX2 and F16C (2013 and later).
#if defined(__x86_64__)
#include <immintrin.h>

#include "collectives/kernels_impl.h"

namespace hvd {
namespace {

struct Avx2 {
  static constexpr int kBytes = 32;
  using F32 = Vec<float, kBytes>;
  struct Float16s {
    __m128i low, high;
  };
  struct BFloat16s {  // each value in the low half of 32 bits, because values are packed only in memory
    __m256i low, high;
  };

  static HVD_INLINE void LoadFloat16(const uint16_t* from, F32* parts) {
    parts[0] = _mm256_cvtph_ps(LoadHalves(from));
    parts[1] = _mm256_cvtph_ps(LoadHalves(from + 8));
  }
  static HVD_INLINE Float16s NarrowFloat16(const F32* parts) {
    return {_mm256_cvtps_ph(parts[0], _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(parts[1], _MM_FROUND_TO_NEAREST_INT)};
  }
  static HVD_INLINE void WidenFloat16(Float16s halves, F32* parts) {
    parts[0] = _mm256_cvtph_ps(halves.low);
    parts[1] = _mm256_cvtph_ps(halves.high);
  }
  static HVD_INLINE void Write(uint16_t* to, Float16s halves) {
    StoreHalves(to, halves.low);
    StoreHalves(to + 8, halves.high);
  }

  static HVD_INLINE void LoadBFloat16(const uint16_t* from, F32* parts) {
    for (int k = 0; k < 2; k++) {
      const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadHalves(from + 8 * k)), 16);
      parts[k] = _mm256_castsi256_ps(bits);
    }
  }
  static HVD_INLINE BFloat16s NarrowBFloat16(const F32* parts) { return {Rounded(parts[0]), Rounded(parts[1])}; }
  static HVD_INLINE void WidenBFloat16(BFloat16s halves, F32* parts) {
    parts[0] = _mm256_castsi256_ps(_mm256_slli_epi32(halves.low, 16));
    parts[1] = _mm256_castsi256_ps(_mm256_slli_epi32(halves.high, 16));
  }
  static HVD_INLINE void Write(uint16_t* to, BFloat16s halves) {
    // The pack instruction works within 128-bit halves; the order 0 2 1 3 restores the order of the quarters.
    const __m256i packed = _mm256_packus_epi32(halves.low, halves.high);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ordered);
  }

  // Add instead of multiplying, because a product that is too small for a float may take a hundred times as long.
  static HVD_INLINE F32 TraceOfNan(F32 trace, F32 a, F32 b) { return trace + (a + b); }

  static HVD_INLINE void Widen(F32 part, Vec<double, kBytes>* out) {
    out[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(part));
    out[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(part, 1));
  }

 private:
  static HVD_INLINE __m128i LoadHalves(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static HVD_INLINE void StoreHalves(uint16_t* to, __m128i halves) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static HVD_INLINE __m256i Rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  }
};

}  // namespace

const Kernels& Avx2Kernels() {
  static constexpr Kernels kernels = KernelsFor<Avx2>("avx2");
  return kernels;
}

}  // namespace hvd
#endif
