// SPDX-License-Identifier: Apache-2.0
// Codecs for x86 processors with AVX-512 F, BW, VL and DQ (servers of 2017 and later).
#if defined(__x86_64__)
#if !defined(__clang__)  // gcc 12 warns about its own header, which leaves a value undefined on purpose
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "codecs/codecs_impl.h"

namespace hvd {
namespace {

struct Avx512 {
  static constexpr int kBytes = 64;
  using F32 = Vec<float, kBytes>;
  using I32 = Vec<int32_t, kBytes>;

  static HVD_INLINE uint32_t Mask(const I32* parts) { return _mm512_movepi32_mask(reinterpret_cast<__m512i>(*parts)); }

  static HVD_INLINE void StoreBytes(uint8_t* to, const I32* parts) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(*parts)));
  }

  static HVD_INLINE void LoadBytes(const uint8_t* from, F32* parts) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    *parts = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }

  // Write whole vectors: the entries after the lanes in the mask are overwritten later or ignored.
  static HVD_INLINE size_t Append(const F32* parts, uint32_t mask, const Selection& to, size_t at, int32_t index) {
    const auto lanes = static_cast<__mmask16>(mask);
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i indices = _mm512_add_epi32(numbers, _mm512_set1_epi32(index));
    _mm512_storeu_si512(to.indices + at, _mm512_maskz_compress_epi32(lanes, indices));
    _mm512_storeu_ps(to.values + at, _mm512_maskz_compress_ps(lanes, *parts));
    return at + static_cast<size_t>(__builtin_popcount(mask));
  }
};

}  // namespace

const Codecs& Avx512Codecs() {
  static constexpr Codecs codecs = CodecsFor<Avx512>("avx512");
  return codecs;
}

}  // namespace hvd
#endif
