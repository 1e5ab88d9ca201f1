// SPDX-License-Identifier: Apache-2.0
// The int8 and one-bit codecs against a naive reference, in every instruction-set variant that this machine can run.
#include "codecs/codecs.h"

#include <doctest/doctest.h>

#include <functional>

#include "tests/codecs_reference.h"

namespace hvd {
namespace {

using namespace codec_tests;

const size_t kCounts[] = {0, 1, 7, 8, 15, 16, 17, 255, 256, 257, 1000, 4095, 4096, 4097, 8200};
const size_t kBlocks[] = {1, 3, 16, 100, 256, 4096};

// A codec, with its block size already bound if it has one, and its reference.
struct Tested {
  std::string name;
  std::function<size_t(size_t count)> bytes;
  std::function<void(const CodecInput&, void*)> encode;
  std::function<void(const void* const*, size_t, const CodecOutput&)> decode;
  std::function<Wire(const Floats&)> reference;
  std::function<Floats(const Wire&, size_t)> reference_values;
};

std::vector<Tested> TestedCodecs() {
  std::vector<Tested> all = {
      {"onebit", OneBitBytes, EncodeOneBit, DecodeOneBit, ReferenceOneBit, ReferenceOneBitValues}};
  for (const size_t block : kBlocks) {
    all.push_back({"int8 of " + std::to_string(block), [=](size_t count) { return Int8Bytes(count, block); },
                   [=](const CodecInput& input, void* wire) { EncodeInt8(input, block, wire); },
                   [=](const void* const* wires, size_t wire_count, const CodecOutput& output) {
                     DecodeInt8(wires, wire_count, block, output);
                   },
                   [=](const Floats& p) { return ReferenceInt8(p, block); },
                   [=](const Wire& wire, size_t count) { return ReferenceInt8Values(wire, count, block); }});
  }
  return all;
}

enum class Left { kNone, kApart, kValues, kResidual };

// Encode to an odd address between guard bytes. Compare the wire bytes and the rounding error with the reference.
void CheckEncode(const Tested& codec, const Floats& values, const Floats& residual, Left left) {
  const Floats p = Sums(values, residual);
  const Wire expected = codec.reference(p);
  REQUIRE(codec.bytes(p.size()) == expected.size());
  Floats own_values = values, own_residual = residual, apart(p.size());
  Floats* const to = left == Left::kValues ? &own_values : left == Left::kResidual ? &own_residual : &apart;
  Wire memory(expected.size() + 6, 0xA5);
  codec.encode({own_values.data(), residual.empty() ? nullptr : own_residual.data(),
                left == Left::kNone ? nullptr : to->data(), p.size()},
               memory.data() + 3);
  REQUIRE(Wire(memory.begin() + 3, memory.end() - 3) == expected);
  REQUIRE(std::all_of(memory.begin(), memory.begin() + 3, [](uint8_t byte) { return byte == 0xA5; }));
  REQUIRE(std::all_of(memory.end() - 3, memory.end(), [](uint8_t byte) { return byte == 0xA5; }));
  if (left == Left::kNone) return;
  Floats lost = codec.reference_values(expected, p.size());
  for (size_t i = 0; i < p.size(); i++) lost[i] = p[i] - lost[i];
  REQUIRE(SameFloats(*to, lost));
}

// Decode the sum of wires at odd addresses, and compare it with the reference. With `accumulates`, add it to earlier
// values.
void CheckDecode(const Tested& codec, const std::vector<Wire>& wires, size_t count, float factor, bool accumulates) {
  std::vector<Wire> shifted;
  std::vector<const void*> addresses;
  Floats expected;
  for (const Wire& wire : wires) {
    shifted.emplace_back(1, 0xA5);
    shifted.back().insert(shifted.back().end(), wire.begin(), wire.end());
    const Floats values = codec.reference_values(wire, count);
    expected = expected.empty() ? values : Sums(expected, values);
  }
  for (const Wire& wire : shifted) addresses.push_back(wire.data() + 1);
  const Floats before = Make(Kind::kNormal, count, 99);
  for (size_t i = 0; i < count; i++)
    expected[i] = accumulates ? before[i] + expected[i] * factor : expected[i] * factor;
  Floats out = before;
  out.insert(out.end(), 2, 7.0f);
  codec.decode(addresses.data(), addresses.size(), {out.data(), count, factor, accumulates});
  REQUIRE(out[count] == 7.0f);
  REQUIRE(out[count + 1] == 7.0f);
  out.resize(count);
  REQUIRE(SameFloats(out, expected));
}

}  // namespace

TEST_CASE("Encoders write the wire of the reference, and what it loses") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectCodecFlavour(flavour.c_str()));
    for (const Tested& codec : TestedCodecs()) {
      for (const size_t count : kCounts) {
        for (const Kind kind : kKinds) {
          INFO(flavour << ", " << codec.name << ", count " << count << ", kind " << static_cast<int>(kind));
          const Floats values = Make(kind, count, 1), residual = Make(kind, count, 2);
          for (const Left left : {Left::kNone, Left::kApart, Left::kValues}) CheckEncode(codec, values, {}, left);
          for (const Left left : {Left::kNone, Left::kApart, Left::kValues, Left::kResidual}) {
            CheckEncode(codec, values, residual, left);
          }
        }
      }
    }
  }
}

TEST_CASE("Decoders give the values of the reference, added up in the order of the wires") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectCodecFlavour(flavour.c_str()));
    for (const Tested& codec : TestedCodecs()) {
      for (const size_t count : kCounts) {
        for (size_t wire_count = 1; wire_count <= 4; wire_count++) {
          std::vector<Wire> wires;
          for (size_t w = 0; w < wire_count; w++) {
            const Kind kind = count % 2 ? Kind::kMixed : kKinds[(wire_count + w) % 8];
            wires.push_back(codec.reference(Make(kind, count, static_cast<unsigned>(w))));
          }
          INFO(flavour << ", " << codec.name << ", count " << count << ", wires " << wire_count);
          CheckDecode(codec, wires, count, 1.0f, false);
          CheckDecode(codec, wires, count, 1.0f / 3, false);
          CheckDecode(codec, wires, count, 0.5f, true);
        }
      }
    }
  }
}

TEST_CASE("int8 rounds to nearest even and uses the whole range") {
  const Restored restored;
  const Floats p = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, -127.0f};
  const std::vector<int8_t> expected = {127, 0, 2, 2, 0, -2, -126, -127};
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectCodecFlavour(flavour.c_str()));
    Wire wire(Int8Bytes(p.size(), 256));
    EncodeInt8({p.data(), nullptr, nullptr, p.size()}, 256, wire.data());
    CHECK(FloatAt(wire, 0) == 1.0f);
    CHECK(std::memcmp(wire.data() + 4, expected.data(), expected.size()) == 0);
  }
}

TEST_CASE("One block that is not finite decodes to NaN, and those beside it are whole") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectCodecFlavour(flavour.c_str()));
    for (const Tested& codec : TestedCodecs()) {
      Floats p(3 * kOneBitBlock, 1.0f);
      p[kOneBitBlock + 5] = std::numeric_limits<float>::infinity();
      Wire wire(codec.bytes(p.size()));
      codec.encode({p.data(), nullptr, nullptr, p.size()}, wire.data());
      Floats out(p.size());
      const void* address = wire.data();
      codec.decode(&address, 1, {out.data(), out.size(), 1.0f, false});
      CHECK(std::isnan(out[kOneBitBlock + 5]));
      CHECK(std::all_of(out.begin(), out.begin() + kOneBitBlock, [](float value) { return value == 1.0f; }));
      CHECK(std::all_of(out.end() - kOneBitBlock, out.end(), [](float value) { return value == 1.0f; }));
    }
  }
}

TEST_CASE("IsFinite finds one NaN or infinity anywhere") {
  const Restored restored;
  for (const std::string& flavour : Flavours()) {
    REQUIRE(SelectCodecFlavour(flavour.c_str()));
    for (const size_t count : kCounts) {
      Floats values = Make(Kind::kHuge, count, 3);
      CHECK(IsFinite(values.data(), count));
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        if (at >= count) continue;
        for (const float odd : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
          const float before = values[at];
          for (const float value : {odd, -odd}) {
            values[at] = value;
            CHECK_FALSE(IsFinite(values.data(), count));
          }
          values[at] = before;
        }
      }
    }
  }
}

}  // namespace hvd
