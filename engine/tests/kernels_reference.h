// SPDX-License-Identifier: Apache-2.0
// Reference results of the kernels, computed one element at a time, and the random data of their tests.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/half.h"
#include "base/types.h"

namespace hvd::reference {

using Bytes = std::vector<unsigned char>;

template <class T>
T At(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void Set(Bytes* bytes, size_t i, T value) {
  std::memcpy(bytes->data() + i * sizeof(T), &value, sizeof(T));
}

// ---- the reference, one element at a time ----

template <class T>
T Apply(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  if (a != a) return a;
  if (b != b) return b;
  return op == ReduceOp::kMin ? (a < b ? a : b) : (a > b ? a : b);
}

template <class T, class Load, class Store>
void ReduceFloats(ReduceOp op, const std::vector<Bytes>& srcs, size_t count, double postscale, Load load, Store store) {
  for (size_t i = 0; i < count; i++) {
    T v = load(srcs[0], i);
    for (size_t s = 1; s < srcs.size(); s++) v = Apply<T>(op, v, load(srcs[s], i));
    if (postscale != 1) v *= static_cast<T>(postscale);
    store(i, v);
  }
}

template <class T>
void ReduceIntegers(ReduceOp op, const std::vector<Bytes>& srcs, size_t count, double postscale, Bytes* out) {
  for (size_t i = 0; i < count; i++) {
    T v = At<T>(srcs[0], i);
    for (size_t s = 1; s < srcs.size(); s++) {
      const T w = At<T>(srcs[s], i);
      if (op == ReduceOp::kSum) v = static_cast<T>(static_cast<uint64_t>(v) + static_cast<uint64_t>(w));
      if (op == ReduceOp::kProduct) v = static_cast<T>(static_cast<uint64_t>(v) * static_cast<uint64_t>(w));
      if (op == ReduceOp::kMin) v = v < w ? v : w;
      if (op == ReduceOp::kMax) v = v > w ? v : w;
    }
    if (postscale != 1) {
      const double scaled = std::trunc(static_cast<double>(v) * postscale);
      const double low = static_cast<double>(std::numeric_limits<T>::lowest());
      const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
      v = scaled >= end      ? std::numeric_limits<T>::max()
          : scaled <= low    ? std::numeric_limits<T>::lowest()
          : scaled == scaled ? static_cast<T>(scaled)
                             : T{0};
    }
    Set<T>(out, i, v);
  }
}

inline void ReduceBools(ReduceOp op, const std::vector<Bytes>& srcs, size_t count, Bytes* out) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  for (size_t i = 0; i < count; i++) {
    bool v = !any;
    for (const Bytes& src : srcs) v = any ? (v || src[i] != 0) : (v && src[i] != 0);
    (*out)[i] = v ? 1 : 0;
  }
}

template <class Storage, class ToFloat, class FromFloat>
void ReduceSmall(ReduceOp op, const std::vector<Bytes>& srcs, size_t count, double postscale, Bytes* out, ToFloat to,
                 FromFloat from) {
  ReduceFloats<float>(
      op, srcs, count, postscale, [&](const Bytes& src, size_t i) { return to(At<Storage>(src, i)); },
      [&](size_t i, float v) { Set<Storage>(out, i, from(v)); });
}

template <class T>
void ReducePlain(ReduceOp op, const std::vector<Bytes>& srcs, size_t count, double postscale, Bytes* out) {
  ReduceFloats<T>(
      op, srcs, count, postscale, [](const Bytes& src, size_t i) { return At<T>(src, i); },
      [&](size_t i, T v) { Set<T>(out, i, v); });
}

inline Bytes Expected(DType dtype, ReduceOp op, const std::vector<Bytes>& srcs, size_t count, double postscale) {
  Bytes out(count * SizeOf(dtype));
  switch (dtype) {
    case DType::kUInt8:
      ReduceIntegers<uint8_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kInt8:
      ReduceIntegers<int8_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kUInt16:
      ReduceIntegers<uint16_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kInt16:
      ReduceIntegers<int16_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kUInt32:
      ReduceIntegers<uint32_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kInt32:
      ReduceIntegers<int32_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kUInt64:
      ReduceIntegers<uint64_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kInt64:
      ReduceIntegers<int64_t>(op, srcs, count, postscale, &out);
      break;
    case DType::kBool:
      ReduceBools(op, srcs, count, &out);
      break;
    case DType::kFloat32:
      ReducePlain<float>(op, srcs, count, postscale, &out);
      break;
    case DType::kFloat64:
      ReducePlain<double>(op, srcs, count, postscale, &out);
      break;
    case DType::kFloat16:
      ReduceSmall<uint16_t>(op, srcs, count, postscale, &out, FloatFromFloat16, Float16FromFloat);
      break;
    case DType::kBFloat16:
      ReduceSmall<uint16_t>(op, srcs, count, postscale, &out, FloatFromBFloat16, BFloat16FromFloat);
      break;
    case DType::kFloat8E4M3:
      ReduceSmall<uint8_t>(op, srcs, count, postscale, &out, FloatFromFloat8E4M3, Float8E4M3FromFloat);
      break;
    case DType::kFloat8E5M2:
      ReduceSmall<uint8_t>(op, srcs, count, postscale, &out, FloatFromFloat8E5M2, Float8E5M2FromFloat);
      break;
  }
  return out;
}

// ---- helpers ----

inline bool IsNan(DType dtype, const Bytes& bytes, size_t i) {
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(FloatFromFloat16(At<uint16_t>(bytes, i)));
    case DType::kBFloat16:
      return std::isnan(FloatFromBFloat16(At<uint16_t>(bytes, i)));
    case DType::kFloat8E4M3:
      return std::isnan(FloatFromFloat8E4M3(At<uint8_t>(bytes, i)));
    case DType::kFloat8E5M2:
      return std::isnan(FloatFromFloat8E5M2(At<uint8_t>(bytes, i)));
    case DType::kFloat32:
      return std::isnan(At<float>(bytes, i));
    case DType::kFloat64:
      return std::isnan(At<double>(bytes, i));
    default:
      return false;
  }
}

// Return the index of the first element that differs, or `count`. Any NaN equals any other, because processors differ
// in NaN bits.
inline size_t FirstDifference(DType dtype, const Bytes& a, const Bytes& b, size_t count) {
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < count; i++) {
    if (std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0) continue;
    if (!IsNan(dtype, a, i) || !IsNan(dtype, b, i)) return i;
  }
  return count;
}

// Return random bits: integers that wrap, and floats of every kind, including NaN, infinities and denormals. Half of
// the floats have similar magnitudes, so that their sums need rounding.
inline Bytes RandomBytes(DType dtype, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * SizeOf(dtype));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t i = 0; i < count; i += 2) {
    const double value = static_cast<int>(random() % 20001 - 10000) / 1024.0;
    const float small = static_cast<float>(value);
    if (dtype == DType::kFloat64) Set<double>(&bytes, i, value * (1 + std::ldexp(random(), -60)));
    if (dtype == DType::kFloat32) Set<float>(&bytes, i, static_cast<float>(value * (1 + std::ldexp(random(), -50))));
    if (dtype == DType::kFloat16) Set<uint16_t>(&bytes, i, Float16FromFloat(small));
    if (dtype == DType::kBFloat16) Set<uint16_t>(&bytes, i, BFloat16FromFloat(small));
    if (dtype == DType::kBool) bytes[i] = random() % 2;
  }
  return bytes;
}

inline std::vector<Bytes> RandomSources(DType dtype, int nsrcs, size_t count) {
  std::vector<Bytes> srcs;
  for (int s = 0; s < nsrcs; s++) srcs.push_back(RandomBytes(dtype, count, 1000u * static_cast<unsigned>(s) + 7));
  return srcs;
}

}  // namespace hvd::reference
