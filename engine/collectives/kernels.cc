// SPDX-License-Identifier: Apache-2.0
// Selects the kernels that suit this machine, and holds the code that all flavours share.
#include "collectives/kernels.h"

#include <atomic>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/instruction_sets.h"
#include "collectives/kernels_table.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace hvd {
namespace {

#if defined(__aarch64__)
bool HasHalfArithmetic() {
#if defined(__linux__)
  constexpr unsigned long kAsimdHalf = 1ul << 10;  // HWCAP_ASIMDHP
  return (getauxval(AT_HWCAP) & kAsimdHalf) != 0;
#else
  return true;  // all 64-bit ARM machines with macOS support it
#endif
}
#endif

// Return the flavours that this machine can run, the best first.
std::vector<const Kernels*> UsableKernels() {
  std::vector<const Kernels*> usable;
#if defined(__aarch64__)
  if (HasHalfArithmetic()) usable.push_back(&NeonFp16Kernels());
  usable.push_back(&NeonKernels());
#elif defined(__x86_64__)
  if (HasAvx512()) usable.push_back(&Avx512Kernels());
  if (HasAvx2()) usable.push_back(&Avx2Kernels());
#endif
  usable.push_back(&PortableKernels());
  return usable;
}

std::atomic<const Kernels*>& Chosen() {
  static std::atomic<const Kernels*> chosen{UsableKernels().front()};
  return chosen;
}

const Kernels& Current() { return *Chosen().load(std::memory_order_relaxed); }

// Remove the payload of a NaN, because stores of bfloat16 rely on NaN having no payload in its low bits.
double WithoutPayload(double factor) { return std::isnan(factor) ? std::numeric_limits<double>::quiet_NaN() : factor; }

void Copy(void* dst, const void* src, size_t bytes) {
  if (dst != nullptr && dst != src) std::memcpy(dst, src, bytes);
}

}  // namespace

void Reduce(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
            double postscale) {
  assert(nsrcs >= 1 && op != ReduceOp::kAverage && op != ReduceOp::kAdasum);
  if (count == 0) return;
  if (dtype == DType::kBool) {
    op = op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin;
    postscale = 1;
  } else if (nsrcs == 1 && postscale == 1) {
    Copy(dst, srcs[0], count * SizeOf(dtype));
    Copy(dst2, srcs[0], count * SizeOf(dtype));
    return;
  }
  Current().reduce(dtype, op, dst, dst2, srcs, nsrcs, count, WithoutPayload(postscale));
}

void ScaleCopy(DType dtype, void* dst, const void* src, size_t count, double factor) {
  if (factor == 1) {
    Copy(dst, src, count * SizeOf(dtype));
  } else {
    Reduce(dtype, ReduceOp::kSum, dst, nullptr, &src, 1, count, factor);
  }
}

void Narrow(DType half, void* dst, const void* src, size_t count) { Current().narrow(half, dst, src, count); }
void Widen(DType half, void* dst, const void* src, size_t count) { Current().widen(half, dst, src, count); }

void SumWide(DType half, void* narrow, void* wide, const void* const* srcs, int own, size_t count, double postscale) {
  assert(own == 0 || own == 1);
  const double factor = WithoutPayload(postscale);
  const WideSum sum{half, static_cast<uint16_t*>(narrow), static_cast<float*>(wide), srcs, own, factor};
  Current().sum_wide(sum, count);
}

void SumWideInSteps(const WideSum& sum, size_t begin, size_t count) {
  assert(count <= kWideBlock);
  uint16_t rounded[kWideBlock];
  Narrow(sum.half, rounded, sum.Own() + begin, count);
  const void* sources[2] = {sum.Other() + begin, sum.Other() + begin};
  sources[sum.own] = rounded;
  Reduce(sum.half, ReduceOp::kSum, sum.narrow + begin, nullptr, sources, 2, count, sum.postscale);
  Widen(sum.half, sum.wide + begin, sum.narrow + begin, count);
}

void DotProducts(DType dtype, const void* a, const void* b, size_t count, double out[3]) {
  Current().dot_products(dtype, a, b, count, out);
}

void LinearCombination(DType dtype, void* dst, const void* a, double ca, const void* b, double cb, size_t count) {
  Current().linear_combination(dtype, dst, a, WithoutPayload(ca), b, WithoutPayload(cb), count);
}

const char* KernelFlavour() { return Current().flavour; }

bool SelectKernelFlavour(const char* flavour) {
  for (const Kernels* kernels : UsableKernels()) {
    if (std::strcmp(kernels->flavour, flavour) == 0) {
      Chosen().store(kernels, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

namespace {

template <typename T>
void DivideAll(void* data, size_t count, int64_t divisor) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / static_cast<T>(divisor));
}

}  // namespace

// Use ordinary loops, because averages of 64-bit integers are rare and no SIMD instruction set divides them.
void Divide(DType dtype, void* data, size_t count, int64_t divisor) {
  if (dtype == DType::kInt64) return DivideAll<int64_t>(data, count, divisor);
  if (dtype == DType::kUInt64) return DivideAll<uint64_t>(data, count, divisor);
}

}  // namespace hvd
