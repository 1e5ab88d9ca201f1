// SPDX-License-Identifier: Apache-2.0
// Table of the codec loops of one flavour, compiled for one instruction set.
#pragma once

#include "codecs/codecs.h"

namespace hvd {

// One chunk of a top-k encoding. `select` copies p to `left`, with zeros where |p| reaches the threshold, and appends
// the index and p of each such value. It returns their number, and may write kSelectSlack more entries.
constexpr size_t kSelectChunk = 2048;
constexpr size_t kSelectSlack = 16;
struct Selection {
  int32_t threshold;  // bits of a float32 that is positive and not NaN
  int32_t first_index;
  int32_t* indices;
  float* values;
};

struct Codecs {
  const char* flavour;
  void (*encode_int8)(const CodecInput& input, size_t block, uint8_t* wire);
  void (*decode_int8)(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output);
  void (*encode_onebit)(const CodecInput& input, uint8_t* wire);
  void (*decode_onebit)(const void* const* wires, size_t wire_count, const CodecOutput& output);
  size_t (*select)(const CodecInput& chunk, const Selection& selection);
  bool (*is_finite)(const float* values, size_t count);
};

// Return the codecs of one flavour. Each function is defined in the file of that name, and only on its platform.
const Codecs& PortableCodecs();
const Codecs& NeonCodecs();
const Codecs& Avx2Codecs();
const Codecs& Avx512Codecs();

}  // namespace hvd
