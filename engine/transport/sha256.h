// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104) for handshakes. They hash a few hundred bytes at a time, so the code
// is not tuned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvd {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void Update(std::string_view bytes);
  Digest Finish();  // ends the hash; call it only once

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_ = {};
  uint64_t size_ = 0;  // number of bytes hashed so far
};

class HmacSha256 {
 public:
  explicit HmacSha256(std::string_view key);
  void Update(std::string_view bytes) { inner_.Update(bytes); }
  Digest Finish();

 private:
  Sha256 inner_;
  Sha256 outer_;
};

inline std::string_view BytesOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Compare in a time that does not depend on where the first difference is, so that a forger learns nothing from a
// refusal.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace hvd
