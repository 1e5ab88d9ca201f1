// SPDX-License-Identifier: Apache-2.0
// Codecs that make gradients smaller on the wire: pure functions over float32 in memory of the caller, without state.
// Every instruction set gives the same bits, except for which NaN a decoder writes. The formats are little-endian:
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

// What an encoder encodes: p = values + residual, or values alone where residual is null. `left` receives p minus what
// the wire decodes to, unless it is null. It may be the same memory as values or residual. Where p is not finite, int8
// and onebit fill that block of `left` with NaN, and topk leaves p as it is.
struct CodecInput {
  const float* values;
  const float* residual;
  float* left;
  size_t count;
};

// What a decoder makes of the wires: out = factor * (first + second + ...), or out += that where it accumulates.
struct CodecOutput {
  float* out;
  size_t count;
  float factor;
  bool accumulates;
};

// Wires may begin at any address. `block` is not 0, and there is at least one wire.
size_t Int8Bytes(size_t count, size_t block);
void EncodeInt8(const CodecInput& input, size_t block, void* wire);
void DecodeInt8(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output);

size_t OneBitBytes(size_t count);
void EncodeOneBit(const CodecInput& input, void* wire);
void DecodeOneBit(const void* const* wires, size_t wire_count, const CodecOutput& output);

// The most pairs that a message has when k are wanted: 1.25 k, rounded up.
inline size_t TopKPairs(size_t k) { return k + (k + 3) / 4; }

// Sends the values with the largest |p|, about k of them and at most TopKPairs(k) or `capacity`. Returns the number of
// pairs, at least 1 unless count is 0. The wire has room for `capacity` pairs, capacity > 0; count is below 2^31.
// The threshold is an estimate of the k-th largest |p| from a sample of 1 % of the values, at least 1,024. Zeros are
// never sent, unless there is nothing else.
size_t EncodeTopK(const CodecInput& input, size_t k, size_t capacity, void* wire);

// Adds factor * value at each index, to zeros unless it accumulates. An error names a message that cannot be one for
// `count` values, and then nothing has been written.
Status DecodeTopK(const void* wire, size_t bytes, const CodecOutput& output);

bool IsFinite(const float* values, size_t count);

// The instruction set in use: the best that this machine has, or the one that a test selects.
const char* CodecFlavour();
bool SelectCodecFlavour(const char* flavour);

}  // namespace hvd
