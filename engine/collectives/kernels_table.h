// SPDX-License-Identifier: Apache-2.0
// What one flavour of the kernels offers: the functions of kernels.h compiled for one instruction set.
#pragma once

#include <cstddef>

#include "core/types.h"

namespace hvd {

struct Kernels {
  const char* flavour;
  void (*reduce)(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
                 double postscale);
  void (*dot_products)(DType dtype, const void* a, const void* b, size_t count, double out[3]);
  void (*linear_combination)(DType dtype, void* dst, const void* a, double ca, const void* b, double cb, size_t count);
  void (*narrow)(DType half, void* dst, const void* src, size_t count);
  void (*widen)(DType half, void* dst, const void* src, size_t count);
};

// Each is defined in the file of that name, on its own platform only.
const Kernels& PortableKernels();
const Kernels& NeonKernels();
const Kernels& NeonFp16Kernels();
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();

}  // namespace hvd
