// SPDX-License-Identifier: Apache-2.0
// What runs on the device: copies between tensors and a flat run, and sums of such runs. The same bits as the host's
// kernels give (collectives/kernels.h): in the order of the members, halves in float32, rounded once, nothing fused.
// `scripts/device-kernels` makes kernels_ptx.inc of this; neither it nor a compiler for devices is needed to build or
// to install. The tests' stand-in for the driver compiles the same text for the processor.
#ifndef HVD_INLINE
#define HVD_INLINE __device__ __forceinline__
#endif
#include "base/half.h"
#include "devices/tasks.h"
#include "hvd/engine.h"

namespace hvd {
namespace {

struct alignas(16) Unit {
  uint32_t words[4];
};

HVD_INLINE int FirstSegment(const Segment* segments, int count, uint64_t at) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (segments[middle].begin <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

HVD_INLINE bool IsWhole(uint64_t address, uint64_t bytes) { return bytes >= kUnit && address % kUnit == 0; }

// ---- elements: how they are stored, and what they are added as

template <typename T>
struct Plain {
  using Storage = T;
  using Lane = T;
  static HVD_INLINE Lane Load(T value) { return value; }
  static HVD_INLINE T Store(Lane value) { return value; }
};
struct Float16 {
  using Storage = uint16_t;
  using Lane = float;
  static HVD_INLINE float Load(uint16_t bits) { return FloatFromFloat16(bits); }
  static HVD_INLINE uint16_t Store(float value) { return Float16FromFloat(value); }
};
struct BFloat16 {
  using Storage = uint16_t;
  using Lane = float;
  static HVD_INLINE float Load(uint16_t bits) { return FloatFromBFloat16(bits); }
  static HVD_INLINE uint16_t Store(float value) { return BFloat16FromFloat(value); }
};
struct Float8E4M3 {
  using Storage = uint8_t;
  using Lane = float;
  static HVD_INLINE float Load(uint8_t bits) { return FloatFromFloat8E4M3(bits); }
  static HVD_INLINE uint8_t Store(float value) { return Float8E4M3FromFloat(value); }
};
struct Float8E5M2 {
  using Storage = uint8_t;
  using Lane = float;
  static HVD_INLINE float Load(uint8_t bits) { return FloatFromFloat8E5M2(bits); }
  static HVD_INLINE uint8_t Store(float value) { return Float8E5M2FromFloat(value); }
};
struct Bool {
  using Storage = uint8_t;
  using Lane = uint8_t;
  static HVD_INLINE uint8_t Load(uint8_t value) { return value != 0; }
  static HVD_INLINE uint8_t Store(uint8_t value) { return value; }
};

template <typename Lane>
HVD_INLINE Lane Combined(int op, Lane a, Lane b) {
  switch (op) {
    case HVD_SUM:
      return static_cast<Lane>(a + b);
    case HVD_PRODUCT:
      return static_cast<Lane>(a * b);
    case HVD_MIN:  // a NaN on either side is the result
      return (a < b || a != a) ? a : b;
    default:
      return (a > b || a != a) ? a : b;
  }
}

// Integers are truncated toward zero, and what is too large becomes the largest there is.
template <typename Lane>
HVD_INLINE Lane Clamped(double value) {
  constexpr bool kSigned = static_cast<Lane>(-1) < static_cast<Lane>(0);
  constexpr int kDigits = static_cast<int>(sizeof(Lane) * 8) - kSigned;
  constexpr uint64_t kLargest = ~uint64_t{0} >> (64 - kDigits);
  // Exact in double: one past the largest value is a power of two.
  constexpr double kEnd = 2.0 * static_cast<double>(uint64_t{1} << (kDigits - 1));
  if (value >= kEnd) return static_cast<Lane>(kLargest);
  if (value <= (kSigned ? -kEnd : 0.0)) return kSigned ? static_cast<Lane>(~kLargest) : static_cast<Lane>(0);
  return value == value ? static_cast<Lane>(value) : static_cast<Lane>(0);
}

template <typename Lane>
HVD_INLINE Lane Scaled(Lane value, double factor) {
  return Clamped<Lane>(static_cast<double>(value) * factor);
}
template <>
HVD_INLINE double Scaled(double value, double factor) {
  return value * factor;
}
template <>
HVD_INLINE float Scaled(float value, double factor) {
  return value * static_cast<float>(factor);
}

// Averages of smaller integers have kernels of their own.
template <typename Lane>
HVD_INLINE Lane Divided(Lane value, int64_t) {
  return value;
}
template <>
HVD_INLINE int64_t Divided(int64_t value, int64_t divisor) {
  return value / divisor;
}
template <>
HVD_INLINE uint64_t Divided(uint64_t value, int64_t divisor) {
  return value / static_cast<uint64_t>(divisor);
}

template <class E>
HVD_INLINE void ReduceUnit(const ReduceTask& task, uint64_t offset, typename E::Storage* result) {
  using Storage = typename E::Storage;
  using Lane = typename E::Lane;
  constexpr int kCount = static_cast<int>(kUnit / sizeof(Storage));
  Lane sums[kCount];
  for (int member = 0; member < task.members; ++member) {
    const Unit unit = *reinterpret_cast<const Unit*>(task.sources[member] + offset);
    Storage values[kCount];
    memcpy(values, &unit, kUnit);
    if (member == 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] = E::Load(values[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] = Combined<Lane>(task.op, sums[k], E::Load(values[k]));
    }
  }
  if (task.factor != 1.0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] = Scaled<Lane>(sums[k], task.factor);
  }
  if (task.divisor != 1) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] = Divided<Lane>(sums[k], task.divisor);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) result[k] = E::Store(sums[k]);
}

// What is left of a tensor at an address may be less than a unit.
template <typename Storage>
HVD_INLINE void StoreUnit(uint64_t address, uint64_t left, const Storage* result) {
  if (IsWhole(address, left)) {
    *reinterpret_cast<Unit*>(address) = *reinterpret_cast<const Unit*>(result);
  } else {
    const int count = static_cast<int>((left < kUnit ? left : kUnit) / sizeof(Storage));
    for (int k = 0; k < count; ++k) reinterpret_cast<Storage*>(address)[k] = result[k];
  }
}

template <class E>
HVD_INLINE void Reduce(const ReduceTask& task, uint64_t thread, uint64_t threads) {
  using Storage = typename E::Storage;
  uint64_t at = task.begin + thread * kUnit;
  int s = at < task.end ? FirstSegment(task.segments, task.count, at) : 0;
  for (; at < task.end; at += threads * kUnit) {
    while (s + 1 < task.count && task.segments[s + 1].begin <= at) ++s;
    const uint64_t offset = at - task.segments[s].begin;
    if (offset >= task.segments[s].bytes) continue;  // between two tensors
    alignas(16) Storage result[kUnit / sizeof(Storage)];
    ReduceUnit<E>(task, at - task.begin, result);
    const uint64_t left = task.segments[s].bytes - offset;
    StoreUnit(task.segments[s].address + offset, left, result);
    for (int k = 0; k < task.others; ++k) StoreUnit(task.targets[k] + (at - task.begin), left, result);
  }
}

// ---- averages of integers under 64 bits

// Loops over a unit are unrolled, but not for 8 and 16 bits summed in 64: a set of so many members is rare, and the
// text would be half as long again.
template <typename T, typename Sum>
struct Sums {
  static constexpr int kCount = static_cast<int>(kUnit / sizeof(T));        // in a unit of elements
  static constexpr int kTimes = static_cast<int>(sizeof(Sum) / sizeof(T));  // units of sums for one of elements
  static constexpr int kUnroll = sizeof(T) < 4 && sizeof(Sum) == 8 ? 1 : 16;
};

// The sums of one unit of elements.
template <typename T, typename Sum>
HVD_INLINE void SumUnit(const AverageTask& task, uint64_t offset, Sum* sums) {
  constexpr int kCount = Sums<T, Sum>::kCount, kTimes = Sums<T, Sum>::kTimes, kUnroll = Sums<T, Sum>::kUnroll;
  if (task.from_sums) {
#pragma unroll kUnroll
    for (int k = 0; k < kTimes; ++k) {
      const Unit unit = *reinterpret_cast<const Unit*>(task.reduce.sources[0] + offset * kTimes + k * kUnit);
      memcpy(sums + k * (kCount / kTimes), &unit, kUnit);
    }
    return;
  }
#pragma unroll kUnroll
  for (int k = 0; k < kCount; ++k) sums[k] = 0;
  for (int member = 0; member < task.reduce.members; ++member) {
    const Unit unit = *reinterpret_cast<const Unit*>(task.reduce.sources[member] + offset);
    T values[kCount];
    memcpy(values, &unit, kUnit);
#pragma unroll kUnroll
    for (int k = 0; k < kCount; ++k) sums[k] += static_cast<Sum>(values[k]);
  }
}

template <typename T, typename Sum>
HVD_INLINE T AverageOf(const AverageTask& task, Sum sum) {
  if (task.reduce.divisor == 1) return Clamped<T>(static_cast<double>(sum) * task.reduce.factor);
  return static_cast<T>(sum / static_cast<Sum>(task.reduce.divisor));
}

template <typename T, typename Sum>
HVD_INLINE void AverageIn(const AverageTask& task, uint64_t thread, uint64_t threads) {
  constexpr int kCount = Sums<T, Sum>::kCount, kTimes = Sums<T, Sum>::kTimes, kUnroll = Sums<T, Sum>::kUnroll;
  const ReduceTask& run = task.reduce;
  uint64_t at = run.begin + thread * kUnit;
  int s = at < run.end ? FirstSegment(run.segments, run.count, at) : 0;
  for (; at < run.end; at += threads * kUnit) {
    while (s + 1 < run.count && run.segments[s + 1].begin <= at) ++s;
    const uint64_t offset = at - run.segments[s].begin;
    if (offset >= run.segments[s].bytes) continue;  // between two tensors
    alignas(16) Sum sums[kCount];
    SumUnit<T, Sum>(task, at - run.begin, sums);
    const uint64_t left = run.segments[s].bytes - offset;
    if (task.to_sums) {
      const uint64_t address = run.segments[s].address + offset * kTimes;
#pragma unroll kUnroll
      for (uint64_t k = 0; k < kTimes; ++k) {
        if (k * kUnit >= left * kTimes) break;
        StoreUnit(address + k * kUnit, left * kTimes - k * kUnit, sums + k * (kCount / kTimes));
      }
      continue;
    }
    alignas(16) T result[kCount];
#pragma unroll kUnroll
    for (int k = 0; k < kCount; ++k) result[k] = AverageOf<T, Sum>(task, sums[k]);
    StoreUnit(run.segments[s].address + offset, left, result);
    for (int k = 0; k < run.others; ++k) StoreUnit(run.targets[k] + (at - run.begin), left, result);
  }
}

// Sums of 8 and 16 bits take 32 unless there are very many members.
template <typename T>
HVD_INLINE void Average(const AverageTask& task, uint64_t thread, uint64_t threads) {
  if constexpr (sizeof(T) < 4) {
    if (task.sum_bytes == 4) return AverageIn<T, int32_t>(task, thread, threads);
  }
  AverageIn<T, int64_t>(task, thread, threads);
}

HVD_INLINE void CopyBytes(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t k = 0; k < bytes; ++k) to[k] = from[k];
}

HVD_INLINE void Copy(const CopyTask& task, uint64_t thread, uint64_t threads) {
  uint64_t at = task.begin + thread * kUnit;
  int s = at < task.end ? FirstSegment(task.segments, task.count, at) : 0;
  for (; at < task.end; at += threads * kUnit) {
    while (s + 1 < task.count && task.segments[s + 1].begin <= at) ++s;
    const uint64_t offset = at - task.segments[s].begin;
    if (offset >= task.segments[s].bytes) continue;
    const uint64_t left = task.segments[s].bytes - offset;
    const uint64_t address = task.segments[s].address + offset, flat = task.flat + (at - task.begin);
    const uint64_t from = task.gathers ? address : flat, to = task.gathers ? flat : address;
    if (IsWhole(address, left)) {
      *reinterpret_cast<Unit*>(to) = *reinterpret_cast<const Unit*>(from);
    } else {
      CopyBytes(reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(from), left < kUnit ? left : kUnit);
    }
  }
}

}  // namespace
}  // namespace hvd

#ifndef HVD_KERNEL  // HVD_KERNEL(name, Task, body): the stand-in has its own
#define HVD_KERNEL(name, Task, body)                                                      \
  extern "C" __global__ void name(const __grid_constant__ hvd::Task task) {               \
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;               \
    body(task, thread, threads);                                                          \
  }
#endif

HVD_KERNEL(hvd_copy, CopyTask, hvd::Copy)
HVD_KERNEL(hvd_reduce_uint8, ReduceTask, hvd::Reduce<hvd::Plain<uint8_t>>)
HVD_KERNEL(hvd_reduce_int8, ReduceTask, hvd::Reduce<hvd::Plain<int8_t>>)
HVD_KERNEL(hvd_reduce_uint16, ReduceTask, hvd::Reduce<hvd::Plain<uint16_t>>)
HVD_KERNEL(hvd_reduce_int16, ReduceTask, hvd::Reduce<hvd::Plain<int16_t>>)
HVD_KERNEL(hvd_reduce_int32, ReduceTask, hvd::Reduce<hvd::Plain<int32_t>>)
HVD_KERNEL(hvd_reduce_int64, ReduceTask, hvd::Reduce<hvd::Plain<int64_t>>)
HVD_KERNEL(hvd_reduce_float16, ReduceTask, hvd::Reduce<hvd::Float16>)
HVD_KERNEL(hvd_reduce_float32, ReduceTask, hvd::Reduce<hvd::Plain<float>>)
HVD_KERNEL(hvd_reduce_float64, ReduceTask, hvd::Reduce<hvd::Plain<double>>)
HVD_KERNEL(hvd_reduce_bool, ReduceTask, hvd::Reduce<hvd::Bool>)
HVD_KERNEL(hvd_reduce_bfloat16, ReduceTask, hvd::Reduce<hvd::BFloat16>)
HVD_KERNEL(hvd_reduce_float8_e4m3fn, ReduceTask, hvd::Reduce<hvd::Float8E4M3>)
HVD_KERNEL(hvd_reduce_float8_e5m2, ReduceTask, hvd::Reduce<hvd::Float8E5M2>)
HVD_KERNEL(hvd_reduce_uint32, ReduceTask, hvd::Reduce<hvd::Plain<uint32_t>>)
HVD_KERNEL(hvd_reduce_uint64, ReduceTask, hvd::Reduce<hvd::Plain<uint64_t>>)
HVD_KERNEL(hvd_average_uint8, AverageTask, hvd::Average<uint8_t>)
HVD_KERNEL(hvd_average_int8, AverageTask, hvd::Average<int8_t>)
HVD_KERNEL(hvd_average_uint16, AverageTask, hvd::Average<uint16_t>)
HVD_KERNEL(hvd_average_int16, AverageTask, hvd::Average<int16_t>)
HVD_KERNEL(hvd_average_uint32, AverageTask, hvd::Average<uint32_t>)
HVD_KERNEL(hvd_average_int32, AverageTask, hvd::Average<int32_t>)
