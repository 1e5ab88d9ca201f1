// SPDX-License-Identifier: Apache-2.0
// Codecs for x86 processors with AVX2 (2013 and later).
#if defined(__x86_64__)
#include <immintrin.h>

#include "codecs/codecs_impl.h"

namespace hvd {
namespace {

struct Avx2 {
  static constexpr int kBytes = 32;
  using F32 = Vec<float, kBytes>;
  using I32 = Vec<int32_t, kBytes>;

  static HVD_INLINE uint32_t Mask(const I32* parts) {
    const int low = _mm256_movemask_ps(reinterpret_cast<__m256>(parts[0]));
    const int high = _mm256_movemask_ps(reinterpret_cast<__m256>(parts[1]));
    return static_cast<uint32_t>(low | high << 8);
  }

  static HVD_INLINE void StoreBytes(uint8_t* to, const I32* parts) {
    const __m256i lowest = _mm256_set1_epi32(0xff);
    const __m256i low = _mm256_and_si256(reinterpret_cast<__m256i>(parts[0]), lowest);
    const __m256i high = _mm256_and_si256(reinterpret_cast<__m256i>(parts[1]), lowest);
    // The pack instruction works within 128-bit halves; the order 0 2 1 3 restores the order of the quarters.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }

  static HVD_INLINE void LoadBytes(const uint8_t* from, F32* parts) {
    for (int k = 0; k < 2; k++) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * k));
      parts[k] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
  }

  static HVD_INLINE size_t Append(const F32* parts, uint32_t mask, const Selection& to, size_t at, int32_t index) {
    return AppendOneByOne<Avx2>(parts, mask, to, at, index);
  }
};

}  // namespace

const Codecs& Avx2Codecs() {
  static constexpr Codecs codecs = CodecsFor<Avx2>("avx2");
  return codecs;
}

}  // namespace hvd
#endif
