// SPDX-License-Identifier: Apache-2.0
// Loops of the one-bit codec, written once and compiled for each instruction set.
#pragma once

#include "codecs/codecs_table.h"
#include "codecs/lanes.h"

namespace hvd {

// Add sixteen partial sums as a binary tree. Partial sum i is in lane i.
template <class Number>
HVD_INLINE Number FoldSixteen(Number* sums) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Return the mean where float32 cannot hold the sum, adding in the order of EncodeSigns. Do not inline this, because it
// is rare.
template <class Isa>
__attribute__((noinline)) float LargeMean(const float* values, const float* residual, size_t count) {
  double sums[kLanes] = {};
  for (size_t i = 0; i < count; i++) {
    const float p = residual ? values[i] + residual[i] : values[i];
    sums[i % kLanes] += static_cast<double>(FloatOf(BitsOf(p) & static_cast<uint32_t>(kAbsMask)));
  }
  return static_cast<float>(FoldSixteen(sums) / static_cast<double>(count));
}

// Write the signs and return the mean of |p|, or NaN if a p is not finite.
template <class Isa, bool kResidual>
HVD_INLINE float EncodeSigns(const CodecInput& block, uint8_t* to) {
  using Lanes = LanesOf<Isa>;
  using I = typename Lanes::I;
  using F = typename Lanes::F;
  const float *const values = block.values, *const residual = block.residual;
  LargestOf<Isa> largest;
  typename Lanes::Floats sum = {};
  ForEachSixteen(block.count, [&](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    const auto p = LoadSum<Isa, kResidual, kWhole>(values, residual, i, size);
    I negative[Lanes::kParts];
    for (int k = 0; k < Lanes::kParts; k++) {
      negative[k] = p.parts[k] < F{};
      sum.parts[k] += reinterpret_cast<F>(reinterpret_cast<I>(p.parts[k]) & kAbsMask);
    }
    largest.Add(p);
    const auto mask = static_cast<uint16_t>(Isa::Mask(negative));
    const uint8_t bytes[2] = {static_cast<uint8_t>(mask), static_cast<uint8_t>(mask >> 8)};
    std::memcpy(to + i / 8, bytes, kWhole ? 2 : (size + 7) / 8);
  });
  if (__builtin_expect(largest.Result() >= kInfinityBits, 0)) return FloatOf(kNanBits);
  float sums[kLanes];
  std::memcpy(sums, &sum, sizeof sums);
  const float total = FoldSixteen(sums);
  if (__builtin_expect(BitsOf(total) >= static_cast<uint32_t>(kInfinityBits), 0)) {
    return LargeMean<Isa>(values, residual, block.count);
  }
  return total / static_cast<float>(block.count);
}

// Store in `left` what is lost: p minus the decoded value. p is computed again, from the cache.
template <class Isa, bool kResidual>
HVD_INLINE void WriteLeft(const CodecInput& block, float mean) {
  using Lanes = LanesOf<Isa>;
  using I = typename Lanes::I;
  using F = typename Lanes::F;
  const float *const values = block.values, *const residual = block.residual;
  float* const left = block.left;
  const auto means = Lanes::Splat(mean);
  ForEachSixteen(block.count, [=](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    auto p = LoadSum<Isa, kResidual, kWhole>(values, residual, i, size);
    for (int k = 0; k < Lanes::kParts; k++) {
      const I sign = reinterpret_cast<I>(p.parts[k] < F{}) & ~kAbsMask;
      p.parts[k] -= reinterpret_cast<F>(reinterpret_cast<I>(means.parts[k]) | sign);
    }
    Lanes::template Store<kWhole>(p, left + i, size);
  });
}

template <class Isa>
void EncodeOneBitFor(const CodecInput& input, uint8_t* wire) {
  const size_t blocks = (input.count + kOneBitBlock - 1) / kOneBitBlock;
  uint8_t* const bits = wire + blocks * sizeof(float);
  WithKnown(input.residual, input.left, [=](auto residual, auto left) __attribute__((always_inline)) {
    constexpr bool kResidual = decltype(residual)::kValue, kLeft = decltype(left)::kValue;
    for (size_t b = 0; b < blocks; b++) {
      const size_t begin = b * kOneBitBlock, rest = input.count - begin;
      const size_t count = rest < kOneBitBlock ? rest : kOneBitBlock;
      const CodecInput part = {input.values + begin, kResidual ? input.residual + begin : nullptr,
                               kLeft ? input.left + begin : nullptr, count};
      const float mean = EncodeSigns<Isa, kResidual>(part, bits + begin / 8);
      std::memcpy(wire + b * sizeof mean, &mean, sizeof mean);
      if constexpr (kLeft) {
        if (mean == mean) {
          WriteLeft<Isa, kResidual>(part, mean);
        } else {
          FillWith(part.left, count, FloatOf(kNanBits));
        }
      }
    }
  });
}

// Return sixteen decoded values of one encoded input: its mean, with the sign from each lane's bit.
template <class Isa, bool kWhole>
HVD_INLINE typename LanesOf<Isa>::Floats LoadSigns(const uint8_t* from, size_t size, float mean) {
  using Lanes = LanesOf<Isa>;
  using I = typename Lanes::I;
  uint8_t bytes[2] = {};
  std::memcpy(bytes, from, kWhole ? 2 : (size + 7) / 8);
  const int32_t word = bytes[0] | bytes[1] << 8;
  int32_t weights[kLanes];
  for (size_t i = 0; i < kLanes; i++) weights[i] = 1 << i;
  typename Lanes::Floats lanes;
  for (int k = 0; k < Lanes::kParts; k++) {
    const I weight = LoadVec<int32_t, Isa::kBytes>(weights + k * Lanes::kWidth);
    const I sign = reinterpret_cast<I>(((I{} + word) & weight) == weight) & ~kAbsMask;
    lanes.parts[k] = reinterpret_cast<typename Lanes::F>((I{} + static_cast<int32_t>(BitsOf(mean))) ^ sign);
  }
  return lanes;
}

template <class Isa, size_t kWires, bool kAccumulates>
void DecodeOneBitLoop(const void* const* wires, size_t wire_count, const CodecOutput& output) {
  using Lanes = LanesOf<Isa>;
  const size_t n = kWires > 0 ? kWires : wire_count;
  const size_t bits_begin = (output.count + kOneBitBlock - 1) / kOneBitBlock * sizeof(float);
  const float factor = output.factor;
  float* const out = output.out;
  ForEachSixteen(output.count, [=](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    const auto load = [=](size_t w) __attribute__((always_inline)) {
      const uint8_t* const wire = static_cast<const uint8_t*>(wires[w]);
      float mean;
      std::memcpy(&mean, wire + i / kOneBitBlock * sizeof mean, sizeof mean);
      return LoadSigns<Isa, kWhole>(wire + bits_begin + i / 8, size, mean);
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

template <class Isa>
void DecodeOneBitFor(const void* const* wires, size_t wire_count, const CodecOutput& output) {
  if (output.accumulates) return DecodeOneBitLoop<Isa, 0, true>(wires, wire_count, output);
  if (wire_count == 1) return DecodeOneBitLoop<Isa, 1, false>(wires, 1, output);
  DecodeOneBitLoop<Isa, 0, false>(wires, wire_count, output);
}

}  // namespace hvd
