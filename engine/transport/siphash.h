// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4 with a 64-bit tag (Aumasson and Bernstein), a keyed hash that is fast for short messages. A message is
// any number of 64-bit words followed by a run of bytes. Hosts must be little-endian, as in base/wire.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hvd {

class SipHash {
 public:
  explicit SipHash(const uint64_t key[2])
      : v0_(key[0] ^ 0x736f6d6570736575u),
        v1_(key[1] ^ 0x646f72616e646f6du),
        v2_(key[0] ^ 0x6c7967656e657261u),
        v3_(key[1] ^ 0x7465646279746573u) {}

  void AddWord(uint64_t word) {
    v3_ ^= word;
    Round();
    Round();
    v0_ ^= word;
    size_ += sizeof word;
  }

  // Add the last, possibly unaligned, part of the message and return the tag. May be called once only.
  uint64_t Finish(std::string_view bytes) {
    while (bytes.size() >= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof word);
      AddWord(word);
      bytes.remove_prefix(sizeof word);
    }
    uint64_t last = (size_ + bytes.size()) << 56;
    for (size_t i = 0; i < bytes.size(); ++i) last |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    AddWord(last);
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) Round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static uint64_t RotateLeft(uint64_t x, int n) { return x << n | x >> (64 - n); }

  void Round() {
    v0_ += v1_, v1_ = RotateLeft(v1_, 13) ^ v0_, v0_ = RotateLeft(v0_, 32);
    v2_ += v3_, v3_ = RotateLeft(v3_, 16) ^ v2_;
    v0_ += v3_, v3_ = RotateLeft(v3_, 21) ^ v0_;
    v2_ += v1_, v1_ = RotateLeft(v1_, 17) ^ v2_, v2_ = RotateLeft(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
  uint64_t size_ = 0;
};

}  // namespace hvd
