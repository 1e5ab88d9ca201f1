// SPDX-License-Identifier: Apache-2.0
// Loops of all codecs for one instruction set (codecs_<flavour>.cc), and the loops that belong to no single format.
#pragma once

#include "codecs/codecs_table.h"
#include "codecs/int8_loops.h"
#include "codecs/lanes.h"
#include "codecs/onebit_loops.h"

namespace hvd {

// Append the lanes in the mask one by one, for an Isa without a faster instruction.
template <class Isa>
HVD_INLINE size_t AppendOneByOne(const typename LanesOf<Isa>::F* parts, uint32_t mask, const Selection& to, size_t at,
                                 int32_t index) {
  float lanes[kLanes];
  std::memcpy(lanes, parts, sizeof lanes);
  for (; mask != 0; mask &= mask - 1, at++) {
    const int lane = __builtin_ctz(mask);
    to.indices[at] = index + lane;
    to.values[at] = lanes[lane];
  }
  return at;
}

template <class Isa, bool kResidual, bool kLeft>
HVD_INLINE size_t SelectLoop(const CodecInput& chunk, const Selection& selection) {
  using Lanes = LanesOf<Isa>;
  using I = typename Lanes::I;
  const float *const values = chunk.values, *const residual = chunk.residual;
  float* const left = chunk.left;
  const int32_t below = selection.threshold - 1;
  size_t found = 0;
  ForEachSixteen(chunk.count, [&](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(tag)::kWhole;
    const auto p = LoadSum<Isa, kResidual, kWhole>(values, residual, i, size);
    typename Lanes::Floats rest;
    I reached[Lanes::kParts];
    for (int k = 0; k < Lanes::kParts; k++) {
      const I bits = reinterpret_cast<I>(p.parts[k]);
      reached[k] = (bits & kAbsMask) > below;
      rest.parts[k] = reinterpret_cast<typename Lanes::F>(bits & ~reached[k]);
    }
    if constexpr (kLeft) Lanes::template Store<kWhole>(rest, left + i, size);
    const uint32_t mask = Isa::Mask(reached);
    if (mask != 0) {
      found = Isa::Append(p.parts, mask, selection, found, selection.first_index + static_cast<int32_t>(i));
    }
  });
  return found;
}

template <class Isa>
size_t SelectFor(const CodecInput& chunk, const Selection& selection) {
  size_t found = 0;
  WithKnown(chunk.residual, chunk.left, [&](auto residual, auto left) __attribute__((always_inline)) {
    found = SelectLoop<Isa, decltype(residual)::kValue, decltype(left)::kValue>(chunk, selection);
  });
  return found;
}

template <class Isa>
bool IsFiniteFor(const float* values, size_t count) {
  constexpr size_t kChunk = 4096;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t rest = count - begin;
    LargestOf<Isa> largest;
    ForEachSixteen(rest < kChunk ? rest : kChunk, [&](size_t i, size_t size, auto tag) __attribute__((always_inline)) {
      largest.Add(LanesOf<Isa>::template Load<decltype(tag)::kWhole>(values + begin + i, size));
    });
    if (largest.Result() >= kInfinityBits) return false;
  }
  return true;
}

template <class Isa>
constexpr Codecs CodecsFor(const char* flavour) {
  return {flavour,        EncodeInt8For<Isa>, DecodeInt8For<Isa>, EncodeOneBitFor<Isa>, DecodeOneBitFor<Isa>,
          SelectFor<Isa>, IsFiniteFor<Isa>};
}

}  // namespace hvd
