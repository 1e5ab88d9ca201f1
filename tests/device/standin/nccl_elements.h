// SPDX-License-Identifier: Apache-2.0
// Reductions of the stand-in for NCCL: elements of its types, in the order of the ranks, half types in float.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#define HVD_INLINE inline
#include "base/half.h"

namespace standin {

inline size_t BytesOf(int type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}

struct HalfElement {
  uint16_t bits;
  float wide() const { return hvd::FloatFromFloat16(bits); }
  static HalfElement From(float value) { return {hvd::Float16FromFloat(value)}; }
};
struct BrainElement {
  uint16_t bits;
  float wide() const { return hvd::FloatFromBFloat16(bits); }
  static BrainElement From(float value) { return {hvd::BFloat16FromFloat(value)}; }
};

template <typename T>
T Wide(T value) {
  return value;
}
inline float Wide(HalfElement value) { return value.wide(); }
inline float Wide(BrainElement value) { return value.wide(); }
template <typename T, typename W>
T Narrow(W value) {
  if constexpr (sizeof(T) == 2) {
    return T::From(value);
  } else {
    return static_cast<T>(value);
  }
}

// Reduce with an operation: 0 sum, 1 product, 2 max, 3 min, above 4 a sum of products with a factor.
template <typename T>
void CombineAs(int op, double factor, const std::vector<const uint8_t*>& shown, size_t count, uint8_t* to) {
  for (size_t i = 0; i < count; ++i) {
    using W = decltype(Wide(T{}));
    W total{};
    for (size_t j = 0; j < shown.size(); ++j) {
      T element;
      std::memcpy(&element, shown[j] + i * sizeof(T), sizeof element);
      W one = Wide(element);
      if (op > 4) one = static_cast<W>(one * static_cast<W>(factor));
      if (j == 0) {
        total = one;
      } else if (op == 1) {
        total = static_cast<W>(total * one);
      } else if (op == 2) {
        total = total > one || total != total ? total : one;  // treats NaN as the engine does; NCCL may differ
      } else if (op == 3) {
        total = total < one || total != total ? total : one;
      } else {
        total = static_cast<W>(total + one);
      }
    }
    const T result = Narrow<T>(total);
    std::memcpy(to + i * sizeof(T), &result, sizeof result);
  }
}

inline void Combine(int type, int op, double factor, const std::vector<const uint8_t*>& shown, size_t count,
                    uint8_t* to) {
  using Run = void (*)(int, double, const std::vector<const uint8_t*>&, size_t, uint8_t*);
  constexpr Run kRuns[] = {CombineAs<int8_t>,  CombineAs<uint8_t>,     CombineAs<int32_t>,     CombineAs<uint32_t>,
                           CombineAs<int64_t>, CombineAs<uint64_t>,    CombineAs<HalfElement>, CombineAs<float>,
                           CombineAs<double>,  CombineAs<BrainElement>};
  kRuns[type](op, factor, shown, count, to);
}

inline double NumberOf(int type, const void* bytes) {
  switch (type) {
    case 6:
      return static_cast<const HalfElement*>(bytes)->wide();
    case 7:
      return static_cast<double>(*static_cast<const float*>(bytes));
    case 8:
      return *static_cast<const double*>(bytes);
    default:
      return static_cast<const BrainElement*>(bytes)->wide();
  }
}

}  // namespace standin
