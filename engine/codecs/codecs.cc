// SPDX-License-Identifier: Apache-2.0
// Selection of the codecs that suit this machine, and the sizes of encoded data.
#include "codecs/codecs.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "base/instruction_sets.h"
#include "codecs/codec_choice.h"

namespace hvd {
namespace {

// Return the flavours that this machine can run, the best first.
std::vector<const Codecs*> UsableCodecs() {
  std::vector<const Codecs*> usable;
#if defined(__aarch64__)
  usable.push_back(&NeonCodecs());
#elif defined(__x86_64__)
  if (HasAvx512()) usable.push_back(&Avx512Codecs());
  if (HasAvx2()) usable.push_back(&Avx2Codecs());
#endif
  usable.push_back(&PortableCodecs());
  return usable;
}

std::atomic<const Codecs*>& ChosenCodecs() {
  static std::atomic<const Codecs*> chosen{UsableCodecs().front()};
  return chosen;
}

size_t Blocks(size_t count, size_t block) { return count / block + (count % block != 0); }

}  // namespace

const Codecs& CurrentCodecs() { return *ChosenCodecs().load(std::memory_order_relaxed); }

size_t Int8Bytes(size_t count, size_t block) { return Blocks(count, block) * sizeof(float) + count; }

void EncodeInt8(const CodecInput& input, size_t block, void* wire) {
  CurrentCodecs().encode_int8(input, block, static_cast<uint8_t*>(wire));
}

void DecodeInt8(const void* const* wires, size_t wire_count, size_t block, const CodecOutput& output) {
  CurrentCodecs().decode_int8(wires, wire_count, block, output);
}

size_t OneBitBytes(size_t count) { return Blocks(count, kOneBitBlock) * sizeof(float) + Blocks(count, 8); }

void EncodeOneBit(const CodecInput& input, void* wire) {
  CurrentCodecs().encode_onebit(input, static_cast<uint8_t*>(wire));
}

void DecodeOneBit(const void* const* wires, size_t wire_count, const CodecOutput& output) {
  CurrentCodecs().decode_onebit(wires, wire_count, output);
}

bool IsFinite(const float* values, size_t count) { return CurrentCodecs().is_finite(values, count); }

const char* CodecFlavour() { return CurrentCodecs().flavour; }

bool SelectCodecFlavour(const char* flavour) {
  for (const Codecs* codecs : UsableCodecs()) {
    if (std::strcmp(codecs->flavour, flavour) == 0) {
      ChosenCodecs().store(codecs, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace hvd
