// SPDX-License-Identifier: Apache-2.0
// Element-wise arithmetic for all dtypes, with the widest SIMD instructions of this machine, chosen at run time.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace hvd {

// For each i, compute v = srcs[0][i] (op) srcs[1][i] (op) ... strictly in that order, then dst[i] = postscale * v.
// - op is kSum, kMin, kMax or kProduct. Pointers are element-aligned, no more. nsrcs >= 1.
// - dst may equal one of the srcs exactly (in place); dst2, if not null, receives the same values as dst.
// - float16/bfloat16/float8 accumulate in float32 over all sources and are rounded once, to nearest even, after the
//   factor; float32 in float32, float64 in float64 (no contraction to fma: the bits do not depend on the instruction
//   set). Integers wrap; a factor != 1 is applied in double and truncated toward zero.
// - bool: kSum, kMax = or; kProduct, kMin = and; any nonzero byte is true, the result is 0 or 1; postscale is ignored.
// - NaN: kMin and kMax propagate it (a NaN in any source makes the result NaN).
void Reduce(DType dtype, ReduceOp op, void* dst, void* dst2, const void* const* srcs, int nsrcs, size_t count,
            double postscale);

// Compute dst[i] = factor * src[i], rounded and truncated as by Reduce; copy if factor is 1. dst may equal src.
void ScaleCopy(DType dtype, void* dst, const void* src, size_t count, double factor);

// Convert float32 to float16 or bfloat16, rounding to nearest even, or back. dst and src must not overlap.
void Narrow(DType half, void* dst, const void* src, size_t count);
void Widen(DType half, void* dst, const void* src, size_t count);

// Sum two sources of a half type, of which srcs[own] is still float32; the bits equal those of narrowing it first.
// `narrow` receives the sum, and `wide` the sum as float32; `wide` may equal srcs[own]. Nothing else may overlap.
void SumWide(DType half, void* narrow, void* wide, const void* const* srcs, int own, size_t count, double postscale);

// Divide 64-bit integers by `divisor` in place, truncating toward zero. Other types are left unchanged; for smaller
// integers see integer_average.h.
void Divide(DType dtype, void* data, size_t count, int64_t divisor);

// Compute Adasum's scalars over one range in float64: out = {a.b, a.a, b.b}. Floating dtypes only.
void DotProducts(DType dtype, const void* a, const void* b, size_t count, double out[3]);
// Compute dst[i] = ca * a[i] + cb * b[i], in float64 for float64 and in float32 for all others. dst may equal a or b.
void LinearCombination(DType dtype, void* dst, const void* a, double ca, const void* b, double cb, size_t count);

// Return the flavour in use: "avx512", "avx2", "neon_fp16", "neon" or "portable".
const char* KernelFlavour();
// Select a flavour, for tests. Return false if this machine cannot run it.
bool SelectKernelFlavour(const char* flavour);

}  // namespace hvd
