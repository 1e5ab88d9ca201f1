// SPDX-License-Identifier: Apache-2.0
#include "collectives/stream_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#endif

namespace hvd {

#if defined(__x86_64__)

namespace {

constexpr size_t kTwoLines = 128;         // size of two cache lines in bytes
constexpr long kLikelyCache = 64L << 20;  // assumed size where the system does not report it

__attribute__((target("avx2"))) void StreamBlocks(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t begin = 0; begin < bytes; begin += kTwoLines) {
    for (size_t i = begin; i < begin + kTwoLines; i += sizeof(__m256i)) {
      const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), part);
    }
  }
}

bool CanStream() {
  static const bool can = __builtin_cpu_supports("avx2");
  return can;
}

}  // namespace

bool OutgrowsCaches(size_t bytes) {
  static const long known = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return CanStream() && bytes > static_cast<size_t>(known > 0 ? known : kLikelyCache);
}

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  if (!CanStream()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t before = std::min(bytes, (kTwoLines - reinterpret_cast<uintptr_t>(to) % kTwoLines) % kTwoLines);
  const size_t end = before + (bytes - before) / kTwoLines * kTwoLines;
  std::memcpy(to, from, before);
  StreamBlocks(to + before, from + before, end - before);
  std::memcpy(to + end, from + end, bytes - end);
  _mm_sfence();  // the fence orders these stores before the stores that announce them
}

#else

bool OutgrowsCaches(size_t) { return false; }
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace hvd
