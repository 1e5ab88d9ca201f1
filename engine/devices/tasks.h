// SPDX-License-Identifier: Apache-2.0
// What kernels on a device are told: passed by value, so that nothing has to be copied before a launch. The tensors of
// a batch lie one after the other in a flat run, each on a border of kUnit bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

constexpr size_t kUnit = 16;        // bytes that one thread moves at a time
constexpr int kMostSegments = 128;  // tensors in a launch
constexpr int kMostSources = 16;    // members whose parts one launch adds

struct Segment {
  uint64_t address;  // start of a tensor, or of the rest of one
  uint64_t begin;    // offset in the flat run
  uint64_t bytes;
};

// Between tensors and the flat run from `begin` on, which lies at `flat`.
struct CopyTask {
  uint64_t flat;
  uint64_t begin, end;
  int32_t gathers;  // 1: from tensors to the run; 0: back
  int32_t count;
  Segment segments[kMostSegments];
};

// Sums of several runs, into tensors, and into `others` runs as well.
struct ReduceTask {
  uint64_t sources[kMostSources];  // where the byte at `begin` lies in each
  uint64_t targets[kMostSources];  // ... and in the others
  uint64_t begin, end;
  double factor;
  int64_t divisor;  // divides sums of 64-bit integers, and averages
  int32_t op;       // ReduceOp: sum, min, max, product
  int32_t members;
  int32_t count;
  int32_t others;
  Segment segments[kMostSegments];
};

// An average of integers under 64 bits, whose sums are wider than its elements; also half of one. Addresses of sources
// and results count in elements or in sums, what lies between `begin` and `end` always in elements.
struct AverageTask {
  ReduceTask reduce;  // divisor: what sums are divided by, which is exact; 1: they are multiplied by the factor
  int32_t sum_bytes;  // 4 or 8
  int32_t from_sums;  // 1: the one source holds sums of all members
  int32_t to_sums;    // 1: the result is the sum of the sources
};

static_assert(sizeof(CopyTask) <= 4096 && sizeof(ReduceTask) <= 4096 && sizeof(AverageTask) <= 4096,
              "the parameters of a kernel are 4 KB at most");

}  // namespace hvd
