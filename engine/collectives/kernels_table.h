// SPDX-License-Identifier: Apache-2.0
// Table of the kernels of one flavour: the functions of kernels.h, compiled for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace hvd {

// Arguments of SumWide: a sum of two sources of a half type, of which srcs[own] is still float32.
struct WideSum {
  DType half;
  uint16_t* narrow;
  float* wide;
  const void* const* srcs;
  int own;
  double postscale;

  const uint16_t* Other() const { return static_cast<const uint16_t*>(srcs[1 - own]); }
  const float* Own() const { return static_cast<const float*>(srcs[own]); }
};

// SumWideInSteps sums the elements [begin, begin + count), at most kWideBlock, with the other kernels in use: narrow,
// reduce, widen.
constexpr size_t kWideBlock = 1024;
void SumWideInSteps(const WideSum& sum, size_t begin, size_t count);

struct Kernels {
  const char* flavour;
  void (*reduce)(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
                 double postscale);
  void (*dot_products)(DType dtype, const void* a, const void* b, size_t count, double out[3]);
  void (*linear_combination)(DType dtype, void* dst, const void* a, double ca, const void* b, double cb, size_t count);
  void (*narrow)(DType half, void* dst, const void* src, size_t count);
  void (*widen)(DType half, void* dst, const void* src, size_t count);
  void (*sum_wide)(const WideSum& sum, size_t count);
};

// Return the kernels of one flavour. Each function is defined in the file of that name, and only on its platform.
const Kernels& PortableKernels();
const Kernels& NeonKernels();
const Kernels& NeonFp16Kernels();
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();

}  // namespace hvd
