// SPDX-License-Identifier: Apache-2.0
// Loops of the int8 codec, written once and compiled for each instruction set.
#pragma once

#include "codecs/codecs_table.h"
#include "codecs/lanes.h"

namespace hvd {

// Constant that, when added, rounds a float32 below 2^22 to an integer (ties to even) and leaves that integer in the
// lowest bits.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

struct Int8Scale {
  float scale, inverse;
};

HVD_INLINE Int8Scale ScaleFor(int32_t largest_bits) {
  const float largest = FloatOf(static_cast<uint32_t>(largest_bits));
  const float inverse = 127.0f / largest;
  if (BitsOf(inverse) >= static_cast<uint32_t>(kInfinityBits)) return {0, 0};
  return {largest / 127.0f, inverse};
}

// Encode one block in two passes; the second one finds the data in the cache. |p * inverse| stays below 127.5, so no
// value needs to be clamped.
template <class Isa, bool kResidual, bool kLeft>
HVD_INLINE void EncodeInt8Block(const CodecInput& block, uint8_t* scale_to, uint8_t* to) {
  using Lanes = LanesOf<Isa>;
  const float *const values = block.values, *const residual = block.residual;
  float* const left = block.left;
  LargestOf<Isa> largest;
  ForEachSixteen(block.count, [&](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    largest.Add(LoadSum<Isa, kResidual, decltype(tag)::kWhole>(values, residual, i, size));
  });
  const int32_t bits = largest.Result();
  if (__builtin_expect(bits >= kInfinityBits, 0)) {
    const float nan = FloatOf(kNanBits);
    std::memcpy(scale_to, &nan, sizeof nan);
    FillWith<uint8_t>(to, block.count, 0);
    if constexpr (kLeft) FillWith(left, block.count, nan);
    return;
  }
  const Int8Scale known = ScaleFor(bits);
  std::memcpy(scale_to, &known.scale, sizeof known.scale);
  ForEachSixteen(block.count, [=](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    auto p = LoadSum<Isa, kResidual, kWhole>(values, residual, i, size);
    typename Lanes::Ints rounded;
    for (int k = 0; k < Lanes::kParts; k++) {
      const auto shifted = p.parts[k] * known.inverse + kRounder;
      rounded.parts[k] = reinterpret_cast<typename Lanes::I>(shifted);
      p.parts[k] -= (shifted - kRounder) * known.scale;
    }
    uint8_t padded[kLanes];
    Isa::StoreBytes(kWhole ? to + i : padded, rounded.parts);
    if constexpr (!kWhole) std::memcpy(to + i, padded, size);
    if constexpr (kLeft) Lanes::template Store<kWhole>(p, left + i, size);
  });
}

template <class Isa>
void EncodeInt8For(const CodecInput& input, size_t block, uint8_t* wire) {
  const size_t blocks = input.count / block + (input.count % block != 0);
  uint8_t* const bytes = wire + blocks * sizeof(float);
  WithKnown(input.residual, input.left, [=](auto residual, auto left) __attribute__((always_inline)) {
    for (size_t b = 0; b < blocks; b++) {
      const size_t begin = b * block, rest = input.count - begin;
      const CodecInput part = {input.values + begin, decltype(residual)::kValue ? input.residual + begin : nullptr,
                               decltype(left)::kValue ? input.left + begin : nullptr, rest < block ? rest : block};
      EncodeInt8Block<Isa, decltype(residual)::kValue, decltype(left)::kValue>(part, wire + b * sizeof(float),
                                                                               bytes + begin);
    }
  });
}

// Decode one block. kWires is the number of encoded inputs if it is known at compile time, otherwise 0.
template <class Isa, size_t kWires, bool kAccumulates>
HVD_INLINE void DecodeInt8Block(const void* const* wires, size_t wire_count, size_t b, size_t bytes_begin,
                                const CodecOutput& output) {
  using Lanes = LanesOf<Isa>;
  const size_t n = kWires > 0 ? kWires : wire_count;
  const float factor = output.factor;
  float* const out = output.out;
  ForEachSixteen(output.count, [=](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    const auto load = [=](size_t w) __attribute__((always_inline)) {
      const uint8_t* const wire = static_cast<const uint8_t*>(wires[w]);
      const uint8_t* from = wire + bytes_begin + i;
      uint8_t padded[kLanes];
      if constexpr (!kWhole) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, from, size);
        from = padded;
      }
      float scale;
      std::memcpy(&scale, wire + b * sizeof scale, sizeof scale);
      typename Lanes::Floats lanes;
      Isa::LoadBytes(from, lanes.parts);
      for (int k = 0; k < Lanes::kParts; k++) lanes.parts[k] *= scale;
      return lanes;
    };
    auto sum = load(0);
    for (size_t w = 1; w < n; w++) {
      const auto next = load(w);
      for (int k = 0; k < Lanes::kParts; k++) sum.parts[k] += next.parts[k];
    }
    for (int k = 0; k < Lanes::kParts; k++) sum.parts[k] *= factor;
    if constexpr (kAccumulates) {
      const auto before = Lanes::template Load<kWhole>(out + i, size);
      for (int k = 0; k < Lanes::kParts; k++) sum.parts[k] = before.parts[k] + sum.parts[k];
    }
    Lanes::template Store<kWhole>(sum, out + i, size);
  });
}

template <class Isa, size_t kWires, bool kAccumulates>
void DecodeInt8Loop(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output) {
  const size_t blocks = output.count / block + (output.count % block != 0);
  for (size_t b = 0; b < blocks; b++) {
    const size_t begin = b * block, rest = output.count - begin;
    const CodecOutput part = {output.out + begin, rest < block ? rest : block, output.factor, output.accumulates};
    DecodeInt8Block<Isa, kWires, kAccumulates>(wires, wire_count, b, blocks * sizeof(float) + begin, part);
  }
}

template <class Isa>
void DecodeInt8For(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output) {
  if (output.accumulates) return DecodeInt8Loop<Isa, 0, true>(wires, wire_count, block, output);
  if (wire_count == 1) return DecodeInt8Loop<Isa, 1, false>(wires, 1, block, output);
  DecodeInt8Loop<Isa, 0, false>(wires, wire_count, block, output);
}

}  // namespace hvd
