// SPDX-License-Identifier: Apache-2.0
#include "collectives/integer_average.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace hvd {
namespace {

// Elements averaged at a time, so few that their sums stay in the first-level cache.
constexpr size_t kAveragedTogether = 512;

template <typename T>
struct Type {
  using Is = T;
};

template <typename F>
void WithNarrowInteger(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kUInt8:
      return f(Type<uint8_t>());
    case DType::kInt8:
      return f(Type<int8_t>());
    case DType::kUInt16:
      return f(Type<uint16_t>());
    case DType::kInt16:
      return f(Type<int16_t>());
    case DType::kUInt32:
      return f(Type<uint32_t>());
    case DType::kInt32:
      return f(Type<int32_t>());
    default:
      return;
  }
}

// Call f with the element's type and the type of its sums.
template <typename F>
void WithSumType(const Reduction& reduction, F&& f) {
  const bool in_int32 = reduction.SumDType() == DType::kInt32;
  WithNarrowInteger(reduction.dtype, [&](auto element) {
    if constexpr (sizeof(typename decltype(element)::Is) < sizeof(int32_t)) {
      if (in_int32) return f(element, Type<int32_t>());
    }
    f(element, Type<int64_t>());
  });
}

// Load an element from any address, because elements in messages may be unaligned.
template <typename T>
T ElementAt(const void* elements, size_t i) {
  T element;
  std::memcpy(&element, static_cast<const std::byte*>(elements) + i * sizeof(T), sizeof(T));
  return element;
}

template <typename T>
void PutElement(void* elements, size_t i, T element) {
  std::memcpy(static_cast<std::byte*>(elements) + i * sizeof(T), &element, sizeof(T));
}

template <typename T>
T ClampedInteger(double value) {
  const double inside = std::clamp(value, static_cast<double>(std::numeric_limits<T>::lowest()),
                                   static_cast<double>(std::numeric_limits<T>::max()));
  return value == value ? static_cast<T>(inside) : T{0};
}

// Divide sums in double. Sums of up to 2^20 members, the largest world, are exact in double, and so is the truncated
// quotient: a quotient below 2^32 is at least 2^-20 away from the next whole number, which is more than the rounding
// error. Compilers vectorise these loops, but they cannot vectorise an integer division.
template <typename T, typename Sum>
void DivideSums(const Reduction& reduction, void* to, const Sum* sums, size_t count) {
  const auto divisor = static_cast<double>(reduction.divisor);
  if (reduction.postscale == 1.0) {
    for (size_t i = 0; i < count; ++i) PutElement(to, i, static_cast<T>(static_cast<double>(sums[i]) / divisor));
  } else {
    const double factor = reduction.postscale / divisor;
    for (size_t i = 0; i < count; ++i) PutElement(to, i, ClampedInteger<T>(static_cast<double>(sums[i]) * factor));
  }
}

// Average a stretch; all its sources are read before any result is stored. Sums that need 64 bits are computed in
// double, which is exact (see DivideSums), because processors convert 64-bit integers one by one.
template <typename T, typename Sum>
void AverageStretch(const Reduction& reduction, void* to, const void* const* sources, int count_of_sources,
                    size_t begin, size_t count) {
  std::conditional_t<sizeof(Sum) == 8, double, Sum> sums[kAveragedTogether];
  for (size_t i = 0; i < count; ++i) sums[i] = ElementAt<T>(sources[0], begin + i);
  for (int s = 1; s < count_of_sources; ++s) {
    const void* const source = sources[s];
    for (size_t i = 0; i < count; ++i) sums[i] += ElementAt<T>(source, begin + i);
  }
  DivideSums<T>(reduction, to, sums, count);
}

}  // namespace

void AverageIntegers(const Reduction& reduction, void* dst, void* dst2, const void* const* sources,
                     int count_of_sources, size_t count) {
  WithSumType(reduction, [&](auto element, auto sum) {
    using T = typename decltype(element)::Is;
    using Sum = typename decltype(sum)::Is;
    for (size_t begin = 0; begin < count; begin += kAveragedTogether) {
      const size_t length = std::min(kAveragedTogether, count - begin);
      std::byte* const to = static_cast<std::byte*>(dst) + begin * sizeof(T);
      AverageStretch<T, Sum>(reduction, to, sources, count_of_sources, begin, length);
      if (dst2) std::memcpy(static_cast<std::byte*>(dst2) + begin * sizeof(T), to, length * sizeof(T));
    }
  });
}

void WidenIntegers(const Reduction& reduction, void* wide, const void* from, size_t count) {
  WithSumType(reduction, [&](auto element, auto sum) {
    auto* const sums = static_cast<typename decltype(sum)::Is*>(wide);
    for (size_t i = 0; i < count; ++i) sums[i] = ElementAt<typename decltype(element)::Is>(from, i);
  });
}

void NarrowAverages(const Reduction& reduction, void* to, const void* wide, size_t count) {
  WithSumType(reduction, [&](auto element, auto sum) {
    const auto* const sums = static_cast<const typename decltype(sum)::Is*>(wide);
    DivideSums<typename decltype(element)::Is>(reduction, to, sums, count);
  });
}

}  // namespace hvd
