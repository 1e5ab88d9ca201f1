// SPDX-License-Identifier: Apache-2.0
// Shared parts of the codec tests: values of all kinds, the usable instruction-set variants, memory with guards, and a
// second, value-by-value implementation of the formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codecs/codecs.h"

namespace hvd::codec_tests {

using Floats = std::vector<float>;
using Wire = std::vector<uint8_t>;

inline std::vector<std::string> Flavours() {
  std::vector<std::string> usable;
  const std::string before = CodecFlavour();
  for (const char* name : {"portable", "neon", "avx2", "avx512"}) {
    if (SelectCodecFlavour(name)) usable.push_back(name);
  }
  SelectCodecFlavour(before.c_str());
  return usable;
}

// Guard that restores the variant that was in use before the test.
struct Restored {
  std::string before = CodecFlavour();
  ~Restored() { SelectCodecFlavour(before.c_str()); }
};

enum class Kind { kNormal, kZeros, kDenormal, kTiny, kHuge, kNan, kInfinity, kMixed };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kZeros, Kind::kDenormal, Kind::kTiny,
                           Kind::kHuge,   Kind::kNan,   Kind::kInfinity, Kind::kMixed};

inline Floats Make(Kind kind, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) {
    value = normal(random);
    if (kind == Kind::kZeros) value = value < 0 ? -0.0f : 0.0f;
    if (kind == Kind::kDenormal) value *= 1e-42f;
    if (kind == Kind::kTiny) value *= 4e-37f;  // close to where 127 / max overflows
    if (kind == Kind::kHuge) value *= 6e37f;
    if (kind == Kind::kMixed && random() % 3 == 0) value = value < 0 ? -0.0f : 0.0f;
  }
  const float odd = kind == Kind::kNan ? std::nanf("") : -std::numeric_limits<float>::infinity();
  if (count > 0 && (kind == Kind::kNan || kind == Kind::kInfinity)) values[random() % count] = odd;
  return values;
}

inline Floats Sums(const Floats& values, const Floats& residual) {
  Floats sums = values;
  for (size_t i = 0; i < residual.size(); i++) sums[i] = values[i] + residual[i];
  return sums;
}

// Return true if both are equal bit for bit, where any NaN equals any other.
inline bool SameFloats(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return (std::isnan(x) && std::isnan(y)) || std::memcmp(&x, &y, sizeof x) == 0;
         });
}

inline void PutFloat(Wire* wire, float value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  wire->insert(wire->end(), bytes, bytes + sizeof value);
}

inline float FloatAt(const Wire& wire, size_t index) {
  float value;
  std::memcpy(&value, wire.data() + index * sizeof value, sizeof value);
  return value;
}

inline bool AllFinite(const float* values, size_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

inline Wire ReferenceInt8(const Floats& p, size_t block) {
  Wire scales, bytes;
  for (size_t begin = 0; begin < p.size(); begin += block) {
    const size_t size = std::min(block, p.size() - begin);
    float largest = 0;
    for (size_t i = 0; i < size; i++) largest = std::fmax(largest, std::fabs(p[begin + i]));
    const float inverse = 127.0f / largest;
    const bool finite = AllFinite(&p[begin], size);
    const bool scaled = finite && std::isfinite(inverse);
    PutFloat(&scales, !finite ? std::numeric_limits<float>::quiet_NaN() : scaled ? largest / 127.0f : 0.0f);
    for (size_t i = 0; i < size; i++) {
      const float rounded = scaled ? std::nearbyint(p[begin + i] * inverse) : 0.0f;
      bytes.push_back(static_cast<uint8_t>(static_cast<int8_t>(std::fmin(std::fmax(rounded, -127.0f), 127.0f))));
    }
  }
  scales.insert(scales.end(), bytes.begin(), bytes.end());
  return scales;
}

inline Floats ReferenceInt8Values(const Wire& wire, size_t count, size_t block) {
  const size_t blocks = (count + block - 1) / block;
  Floats values(count);
  for (size_t i = 0; i < count; i++) {
    values[i] = static_cast<float>(static_cast<int8_t>(wire[blocks * sizeof(float) + i])) * FloatAt(wire, i / block);
  }
  return values;
}

template <class Number>
float ReferenceMean(const float* p, size_t size) {
  Number sums[16] = {};
  for (size_t i = 0; i < size; i++) sums[i % 16] += std::fabs(p[i]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return static_cast<float>(sums[0] / static_cast<Number>(size));
}

inline Wire ReferenceOneBit(const Floats& p) {
  Wire wire;
  for (size_t begin = 0; begin < p.size(); begin += kOneBitBlock) {
    const size_t size = std::min(kOneBitBlock, p.size() - begin);
    float mean = ReferenceMean<float>(&p[begin], size);
    if (std::isinf(mean)) mean = ReferenceMean<double>(&p[begin], size);
    if (!AllFinite(&p[begin], size)) mean = std::numeric_limits<float>::quiet_NaN();
    PutFloat(&wire, mean);
  }
  Wire bits((p.size() + 7) / 8);
  for (size_t i = 0; i < p.size(); i++) bits[i / 8] |= static_cast<uint8_t>((p[i] < 0) << i % 8);
  wire.insert(wire.end(), bits.begin(), bits.end());
  return wire;
}

inline Floats ReferenceOneBitValues(const Wire& wire, size_t count) {
  const size_t means = (count + kOneBitBlock - 1) / kOneBitBlock * sizeof(float);
  Floats values(count);
  for (size_t i = 0; i < count; i++) {
    const float mean = FloatAt(wire, i / kOneBitBlock);
    values[i] = wire[means + i / 8] >> i % 8 & 1 ? -mean : mean;
  }
  return values;
}

}  // namespace hvd::codec_tests
