// SPDX-License-Identifier: Apache-2.0
// Conversion of elements of each dtype to lanes of vectors and back. Templates take an Isa, a type local to one file,
// so that no code is shared between instruction sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "base/types.h"
#include "base/vectors.h"

namespace hvd {

// An Isa defines the size of a vector register, kBytes, and these conversions, all in memory order: one register full
// of 16-bit floats to two of float, from memory (Load{Float16,BFloat16}) or from halves in a type of its choice
// (Widen...); two of float to such halves (Narrow...); such halves to memory (Write); and one of float to two of double
// (Widen).

// Element type in which the arithmetic is done directly, without conversion.
template <class Isa, class T>
struct PlainElement {
  using Storage = T;
  using Lane = T;
  using V = Vec<T, Isa::kBytes>;
  static constexpr int kParts = 1;         // vectors of lanes into which one vector of elements is converted
  static constexpr bool kScalable = true;  // true if factors other than 1 are supported
  static HVD_INLINE void Load(const T* from, V* parts) { std::memcpy(parts, from, sizeof(V)); }
  static HVD_INLINE void Store(T* to, const V* parts) { std::memcpy(to, parts, sizeof(V)); }
};

// bool: any nonzero byte is true. On 0 and 1, max is "or" and min is "and".
template <class Isa>
struct BoolElement : PlainElement<Isa, uint8_t> {
  using V = Vec<uint8_t, Isa::kBytes>;
  static constexpr bool kScalable = false;
  static HVD_INLINE void Load(const uint8_t* from, V* parts) {
    parts[0] = reinterpret_cast<V>(LoadVec<uint8_t, Isa::kBytes>(from) != 0) & 1;
  }
};

template <class Isa>
struct Float16Element {
  using Storage = uint16_t;
  using Lane = float;
  using V = Vec<float, Isa::kBytes>;
  static constexpr int kParts = 2;
  static constexpr bool kScalable = true;
  static HVD_INLINE void Load(const uint16_t* from, V* parts) { Isa::LoadFloat16(from, parts); }
  static HVD_INLINE auto Narrowed(const V* parts) { return Isa::NarrowFloat16(parts); }
  template <class Halves>
  static HVD_INLINE void Widen(Halves halves, V* parts) {
    Isa::WidenFloat16(halves, parts);
  }
  template <class Halves>
  static HVD_INLINE void Write(uint16_t* to, Halves halves) {
    Isa::Write(to, halves);
  }
  static HVD_INLINE void Store(uint16_t* to, const V* parts) { Write(to, Narrowed(parts)); }
  static constexpr bool kStoresAnyNan = true;
  static HVD_INLINE uint16_t FromFloat(float any) { return Float16FromFloat(any); }
};

// bfloat16. An Isa that narrows results need not look for NaN: every NaN that can come out of arithmetic on bfloat16
// values (the payload of an operand, or the processor's default NaN) has its low 16 bits clear, and rounding leaves
// such a number unchanged.
template <class Isa>
struct BFloat16Element {
  using Storage = uint16_t;
  using Lane = float;
  using V = Vec<float, Isa::kBytes>;
  static constexpr int kParts = 2;
  static constexpr bool kScalable = true;
  static HVD_INLINE void Load(const uint16_t* from, V* parts) { Isa::LoadBFloat16(from, parts); }
  static HVD_INLINE auto Narrowed(const V* parts) { return Isa::NarrowBFloat16(parts); }
  template <class Halves>
  static HVD_INLINE void Widen(Halves halves, V* parts) {
    Isa::WidenBFloat16(halves, parts);
  }
  template <class Halves>
  static HVD_INLINE void Write(uint16_t* to, Halves halves) {
    Isa::Write(to, halves);
  }
  static HVD_INLINE void Store(uint16_t* to, const V* parts) { Write(to, Narrowed(parts)); }
  static constexpr bool kStoresAnyNan = false;
  static HVD_INLINE uint16_t FromFloat(float any) { return BFloat16FromFloat(any); }
  // Return NaN in each lane in which the trace or one of the values is NaN.
  static HVD_INLINE V TraceOfNan(V trace, V a, V b) { return Isa::TraceOfNan(trace, a, b); }
};

// Do not inline this, because code size matters more here than speed.
template <class Isa, class Format>
struct Float8Element {
  using Storage = uint8_t;
  using Lane = float;
  using V = Vec<float, Isa::kBytes>;
  static constexpr int kParts = 4;
  static constexpr bool kScalable = true;
  static __attribute__((noinline)) void Load(const uint8_t* from, V* parts) {
    float lanes[Isa::kBytes];
    for (int i = 0; i < Isa::kBytes; i++) lanes[i] = Format::ToFloat(from[i]);
    std::memcpy(parts, lanes, sizeof lanes);
  }
  static __attribute__((noinline)) void Store(uint8_t* to, const V* parts) {
    float lanes[Isa::kBytes];
    std::memcpy(lanes, parts, sizeof lanes);
    for (int i = 0; i < Isa::kBytes; i++) to[i] = static_cast<uint8_t>(Format::FromFloat(lanes[i]));
  }
};

template <class Isa, class F>
HVD_INLINE void WithHalf(DType dtype, F&& f) {
  return dtype == DType::kFloat16 ? f(Float16Element<Isa>{}) : f(BFloat16Element<Isa>{});
}

// Call f with a value of the element type for `dtype`.
template <class Isa, class F>
HVD_INLINE void WithFloating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(Float16Element<Isa>{});
    case DType::kBFloat16:
      return f(BFloat16Element<Isa>{});
    case DType::kFloat32:
      return f(PlainElement<Isa, float>{});
    case DType::kFloat64:
      return f(PlainElement<Isa, double>{});
    case DType::kFloat8E4M3:
      return f(Float8Element<Isa, Float8E4M3Format>{});
    case DType::kFloat8E5M2:
      return f(Float8Element<Isa, Float8E5M2Format>{});
    default:
      return;
  }
}

template <class Isa, class F>
HVD_INLINE void WithElement(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kUInt8:
      return f(PlainElement<Isa, uint8_t>{});
    case DType::kInt8:
      return f(PlainElement<Isa, int8_t>{});
    case DType::kUInt16:
      return f(PlainElement<Isa, uint16_t>{});
    case DType::kInt16:
      return f(PlainElement<Isa, int16_t>{});
    case DType::kUInt32:
      return f(PlainElement<Isa, uint32_t>{});
    case DType::kInt32:
      return f(PlainElement<Isa, int32_t>{});
    case DType::kUInt64:
      return f(PlainElement<Isa, uint64_t>{});
    case DType::kInt64:
      return f(PlainElement<Isa, int64_t>{});
    case DType::kBool:
      return f(BoolElement<Isa>{});
    default:
      return WithFloating<Isa>(dtype, f);
  }
}

}  // namespace hvd
