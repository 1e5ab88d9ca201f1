// SPDX-License-Identifier: Apache-2.0
// Arguments of kernels on a device. They are passed by value, so that nothing has to be copied before a launch. The
// tensors of a batch lie one after the other in a flat run, each at a multiple of kUnit bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

constexpr size_t kUnit = 16;        // bytes that one thread moves at a time
constexpr int kMostSegments = 128;  // largest number of tensors in a launch
constexpr int kMostSources = 16;    // largest number of members whose parts one launch adds

struct Segment {
  uint64_t address;  // start of a tensor, or of the rest of one
  uint64_t begin;    // offset in the flat run
  uint64_t bytes;
};

// Copy between tensors and the stretch of the flat run that starts at `begin`; that stretch lies at `flat`.
struct CopyTask {
  uint64_t flat;
  uint64_t begin, end;
  int32_t gathers;  // 1: copy from tensors to the run; 0: copy back
  int32_t count;
  Segment segments[kMostSegments];
};

// Reduce several runs into tensors, and into `others` runs as well.
struct ReduceTask {
  uint64_t sources[kMostSources];  // address of the byte at `begin` in each source
  uint64_t targets[kMostSources];  // address of the byte at `begin` in each of the other runs
  uint64_t begin, end;
  double factor;
  int64_t divisor;  // divides sums of 64-bit integers, and averages
  int32_t op;       // ReduceOp: sum, min, max, product
  int32_t members;
  int32_t count;
  int32_t others;
  Segment segments[kMostSegments];
};

// Average integers under 64 bits, whose sums are wider than their elements, or do half of that (see from_sums and
// to_sums). Addresses of sources and results count in elements or in sums; `begin` and `end` always count in elements.
struct AverageTask {
  ReduceTask reduce;  // if the divisor is not 1, sums are divided by it exactly, else they are multiplied by the factor
  int32_t sum_bytes;  // bytes of a sum: 4 or 8
  int32_t from_sums;  // 1: the only source holds the sums of all members
  int32_t to_sums;    // 1: results are sums of the sources, not averages
};

static_assert(sizeof(CopyTask) <= 4096 && sizeof(ReduceTask) <= 4096 && sizeof(AverageTask) <= 4096,
              "the parameters of a kernel are 4 KB at most");

}  // namespace hvd
