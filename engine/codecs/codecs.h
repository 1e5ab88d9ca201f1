// SPDX-License-Identifier: Apache-2.0
// Codecs that compress gradients: stateless functions over float32 in memory of the caller. All instruction sets give
// the same bits, except for which NaN a decoder writes. The formats are little-endian:
// - int8: a float32 scale for each block, then one int8 for each value, which stands for int8 * scale. scale is
//   max|p| / 127. It is 0 where 127 / max|p| overflows.
// - onebit: float32 mean of |p| for each block of 4,096 values, then one bit for each value: 1 is -mean, 0 is +mean.
//   Bit i of byte j belongs to value 8j + i.
// - topk: n int32 indices in ascending order, then n float32 values.
// A block with NaN or infinity decodes to NaN. In topk one such value makes the whole message the pair (0, NaN).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace hvd {

constexpr size_t kOneBitBlock = 4096;

// Input of an encoder. It encodes p = values + residual, or values alone if residual is null. `left` receives p minus
// the decoded value, unless it is null; it may be the memory of values or residual. Where p is not finite, int8 and
// onebit fill that block of `left` with NaN, and topk stores p there unchanged.
struct CodecInput {
  const float* values;
  const float* residual;
  float* left;
  size_t count;
};

// Output of a decoder: out = factor * (first + second + ...), or out += that if it accumulates.
struct CodecOutput {
  float* out;
  size_t count;
  float factor;
  bool accumulates;
};

// Encoded data may begin at any address. `block` must not be 0, and there must be at least one encoded input.
size_t Int8Bytes(size_t count, size_t block);
void EncodeInt8(const CodecInput& input, size_t block, void* wire);
void DecodeInt8(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output);

size_t OneBitBytes(size_t count);
void EncodeOneBit(const CodecInput& input, void* wire);
void DecodeOneBit(const void* const* wires, size_t wire_count, const CodecOutput& output);

// Return the maximum number of pairs in a message if k are requested: 1.25 k, rounded up.
inline size_t TopKPairs(size_t k) { return k + (k + 3) / 4; }

// Encode the values with the largest |p|: about k of them, at most TopKPairs(k) and at most `capacity`. Return the
// number of pairs, at least 1 unless count is 0. `wire` must have room for `capacity` pairs, capacity > 0, and count
// must be below 2^31. The threshold is an estimate of the k-th largest |p| from a sample of 1 % of the values, at least
// 1,024. Zeros are encoded only if all values are 0.
size_t EncodeTopK(const CodecInput& input, size_t k, size_t capacity, void* wire);

// Add factor * value at each index, to zeros unless the output accumulates. Return an error if the message is invalid
// for `count` values; nothing has been written then.
Status DecodeTopK(const void* wire, size_t bytes, const CodecOutput& output);

bool IsFinite(const float* values, size_t count);

// Return the instruction set in use: the best of this machine, or the one that a test selects.
const char* CodecFlavour();
bool SelectCodecFlavour(const char* flavour);

}  // namespace hvd
