// SPDX-License-Identifier: Apache-2.0
// SHA-256, HMAC-SHA256 and SipHash-2-4 against published vectors (FIPS 180-4 examples, RFC 4231, the SipHash paper).
#include <doctest/doctest.h>

#include <string>

#include "transport/sha256.h"
#include "transport/siphash.h"

namespace hvd {
namespace {

std::string Hex(const Digest& digest) {
  static const char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string HashOf(std::string_view text) {
  Sha256 hash;
  hash.Update(text);
  return Hex(hash.Finish());
}

std::string MacOf(std::string_view key, std::string_view text) {
  HmacSha256 mac(key);
  mac.Update(text);
  return Hex(mac.Finish());
}

std::string Counting(int from, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(from + i);
  return bytes;
}

TEST_CASE("SHA-256 gives the published digests") {
  CHECK(HashOf("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(HashOf("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(HashOf("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
               "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu") ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(HashOf(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the input is cut") {
  const std::string text = Counting(0, 200);
  for (size_t size : {55u, 56u, 63u, 64u, 65u, 119u, 120u, 128u, 200u}) {
    const std::string_view whole(text.data(), size);
    for (size_t cut = 0; cut <= size; ++cut) {
      Sha256 hash;
      hash.Update(whole.substr(0, cut));
      hash.Update(whole.substr(cut));
      REQUIRE(Hex(hash.Finish()) == HashOf(whole));
    }
  }
}

TEST_CASE("HMAC-SHA256 gives the digests of RFC 4231") {
  CHECK(MacOf(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(MacOf("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(MacOf(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(MacOf(Counting(1, 25), std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(MacOf(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(MacOf(std::string(131, '\xaa'),
              "This is a test using a larger than block-size key and a larger than block-size data. "
              "The key needs to be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("digests are compared whole") {
  const std::string a(32, 'x');
  CHECK(EqualInConstantTime(a, a));
  CHECK_FALSE(EqualInConstantTime(a, a.substr(1)));
  for (size_t i = 0; i < a.size(); ++i) {
    std::string b = a;
    b[i] ^= '\x80';
    CHECK_FALSE(EqualInConstantTime(a, b));
  }
}

// The key is 00 01 .. 0f. The message of row n is 00 01 .. n-1.
TEST_CASE("SipHash-2-4 gives the published tags") {
  const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  const uint64_t tags[] = {0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au, 0x85676696d7fb7e2du,
                           0xcf2794e0277187b7u, 0x18765564cd99a68du, 0xcbc9466e58fee3ceu, 0xab0200f58b01d137u,
                           0x93f5f5799a932462u, 0x9e0082df0ba9e4b0u, 0x7a5dbbc594ddb9f3u, 0xf4b32f46226bada7u,
                           0x751e8fbc860ee5fbu, 0x14ea5627c0843d90u, 0xf723ca908e7af2eeu, 0xa129ca6149be45e5u};
  for (int size = 0; size < 16; ++size) CHECK(SipHash(key).Finish(Counting(0, size)) == tags[size]);
}

TEST_CASE("SipHash of words and bytes is that of the whole message") {
  const uint64_t key[2] = {1, 2};
  SipHash in_parts(key);
  in_parts.AddWord(0x0706050403020100u);
  CHECK(in_parts.Finish(Counting(8, 21)) == SipHash(key).Finish(Counting(0, 29)));
}

}  // namespace
}  // namespace hvd
