// SPDX-License-Identifier: Apache-2.0
// The top-k codec: which values it sends, that no value is lost, and that malformed messages do no harm.
#include <doctest/doctest.h>
#include <hvd/engine.h>

#include "codecs/codecs.h"
#include "tests/codecs_reference.h"

namespace hvd {
namespace {

using namespace codec_tests;

struct Message {
  Wire wire;
  std::vector<int32_t> indices;
  Floats values;
};

Message Encode(const CodecInput& input, size_t k) {
  const size_t capacity = std::max<size_t>(TopKPairs(k), 1);
  Message message{Wire(8 * capacity + 1, 0xA5), {}, {}};
  const size_t pairs = EncodeTopK(input, k, capacity, message.wire.data());
  REQUIRE(pairs <= capacity);
  REQUIRE(message.wire.back() == 0xA5);
  message.wire.resize(8 * pairs);
  message.indices.resize(pairs);
  message.values.resize(pairs);
  std::memcpy(message.indices.data(), message.wire.data(), 4 * pairs);
  std::memcpy(message.values.data(), message.wire.data() + 4 * pairs, 4 * pairs);
  return message;
}

Message Encode(const Floats& p, size_t k) { return Encode({p.data(), nullptr, nullptr, p.size()}, k); }

// Check that no value that was sent is smaller than one that was not. Among equal values the first ones are sent.
void CheckSelection(const Message& message, const Floats& p, size_t k) {
  REQUIRE(message.indices.size() >= 1);
  REQUIRE(message.indices.size() <= TopKPairs(k));
  REQUIRE(std::is_sorted(message.indices.begin(), message.indices.end()));
  REQUIRE(std::adjacent_find(message.indices.begin(), message.indices.end()) == message.indices.end());
  float smallest = std::numeric_limits<float>::infinity(), largest_kept = 0;
  std::vector<bool> sent(p.size());
  size_t last_smallest = 0;
  for (size_t i = 0; i < message.indices.size(); i++) {
    const auto index = static_cast<size_t>(message.indices[i]);
    REQUIRE(index < p.size());
    REQUIRE(message.values[i] == p[index]);
    sent[index] = true;
    if (std::fabs(p[index]) <= smallest) last_smallest = index;
    smallest = std::min(smallest, std::fabs(p[index]));
  }
  for (size_t i = 0; i < p.size(); i++) {
    if (sent[i]) continue;
    largest_kept = std::max(largest_kept, std::fabs(p[i]));
    if (smallest > 0 && std::fabs(p[i]) == smallest) REQUIRE(i > last_smallest);
  }
  REQUIRE(largest_kept <= smallest);
}

Floats Rising(size_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; i++) values[i] = static_cast<float>(i % 2 ? i : 0) - static_cast<float>(i % 2 ? 0 : i);
  return values;
}

}  // namespace

TEST_CASE("top-k sends the largest values, loses nothing, and has the same bits in every flavour") {
  const Restored restored;
  for (const size_t count : {1, 2, 17, 1000, 1024, 1025, 5000, 30011}) {
    for (const Kind kind : {Kind::kNormal, Kind::kZeros, Kind::kDenormal, Kind::kHuge, Kind::kMixed}) {
      const Floats values = Make(kind, count, 1);
      // The sum of two huge values could overflow, so huge values have no residual.
      const Floats residual = kind == Kind::kHuge ? Floats() : Make(kind, count, 2);
      const Floats p = Sums(values, residual);
      for (const size_t k : {size_t{1}, count / 100 + 1, count / 3 + 1, count}) {
        Wire first;
        for (const std::string& flavour : Flavours()) {
          INFO(flavour << ", count " << count << ", kind " << static_cast<int>(kind) << ", k " << k);
          REQUIRE(SelectCodecFlavour(flavour.c_str()));
          Floats left(count);
          const float* const second = residual.empty() ? nullptr : residual.data();
          const Message message = Encode({values.data(), second, left.data(), count}, k);
          CheckSelection(message, p, k);
          REQUIRE(DecodeTopK(message.wire.data(), message.wire.size(), {left.data(), count, 1.0f, true}).ok());
          REQUIRE(std::equal(left.begin(), left.end(), p.begin()));
          REQUIRE(Encode({values.data(), second, nullptr, count}, k).wire == message.wire);
          if (first.empty()) first = message.wire;
          REQUIRE(message.wire == first);
        }
      }
    }
  }
}

TEST_CASE("top-k may leave the rest where the values or the residual were") {
  const Floats values = Make(Kind::kNormal, 5000, 1), residual = Make(Kind::kNormal, 5000, 2);
  Floats apart(5000), in_values = values, in_residual = residual;
  const Message message = Encode({values.data(), residual.data(), apart.data(), 5000}, 50);
  CHECK(Encode({in_values.data(), residual.data(), in_values.data(), 5000}, 50).wire == message.wire);
  CHECK(Encode({values.data(), in_residual.data(), in_residual.data(), 5000}, 50).wire == message.wire);
  CHECK(in_values == apart);
  CHECK(in_residual == apart);
}

TEST_CASE("top-k keeps to its limit where far more values reach the threshold than the sample says") {
  // In rising magnitudes each value is a candidate, and equal ones all reach any threshold.
  for (const size_t k : {1, 10, 1000}) {
    const Floats rising = Rising(50000), equal(50000, -2.0f);
    for (const Floats& p : {rising, equal}) {
      Floats left(p.size());
      const Message message = Encode({p.data(), nullptr, left.data(), p.size()}, k);
      CheckSelection(message, p, k);
      REQUIRE(DecodeTopK(message.wire.data(), message.wire.size(), {left.data(), p.size(), 1.0f, true}).ok());
      CHECK(left == p);
    }
    const Message message = Encode(equal, k);
    CHECK(message.indices.size() == TopKPairs(k));
    CHECK(message.indices.back() == static_cast<int32_t>(TopKPairs(k)) - 1);
  }
  // The sample takes 1,024 of the million values, and contains none of the nonzero ones.
  Floats sparse(1000000);
  for (size_t i = 0; i < 40000; i++) sparse[25 * i + 7] = static_cast<float>(i + 1);
  CheckSelection(Encode(sparse, 100), sparse, 100);
  CHECK(Encode(sparse, 100).indices.size() >= 50);
}

TEST_CASE("top-k estimates well: about k of a large tensor") {
  const Floats p = Make(Kind::kNormal, 2000000, 5);
  const size_t pairs = Encode(p, 20000).indices.size();
  CHECK(pairs > 16000);
  CHECK(pairs < 24000);
}

TEST_CASE("top-k sends zeros only if there is nothing else") {
  Floats p(10000);
  CHECK(Encode(p, 100).indices == std::vector<int32_t>{0});
  p[4321] = -3;
  const Message message = Encode(p, 100);
  CHECK(message.indices == std::vector<int32_t>{4321});
  CHECK(message.values == Floats{-3});
  CHECK(EncodeTopK({p.data(), nullptr, nullptr, 0}, 1, 1, nullptr) == 0);
}

TEST_CASE("top-k sends one NaN for values that are not all finite, and leaves them as they are") {
  for (const Kind kind : {Kind::kNan, Kind::kInfinity}) {
    for (unsigned seed = 0; seed < 8; seed++) {
      for (const size_t count : {1, 100, 20000}) {
        Floats p = Make(kind, count, seed);
        for (size_t i = 0; i < count && seed % 2; i++) p[i] = std::copysign(std::fabs(p[i]) + 1, p[i]);
        Floats left(count);
        const Message message = Encode({p.data(), nullptr, left.data(), count}, count / 100 + 1);
        REQUIRE(message.indices == std::vector<int32_t>{0});
        CHECK(std::isnan(message.values[0]));
        CHECK(SameFloats(left, p));
      }
    }
  }
}

TEST_CASE("top-k refuses messages that cannot be right, and then writes nothing") {
  const Floats before = Make(Kind::kNormal, 100, 1);
  for (const int32_t index : {100, -1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    const int32_t indices[3] = {0, index, 5};
    Wire wire(24);
    std::memcpy(wire.data(), indices, sizeof indices);
    for (const bool accumulates : {false, true}) {
      Floats out = before;
      const Status status = DecodeTopK(wire.data(), wire.size(), {out.data(), out.size(), 1.0f, accumulates});
      CHECK(status.code == Code::kInvalid);
      CHECK(status.text ==
            "pair 1 of a top-k message has index " + std::to_string(index) + ", but there are 100 values");
      CHECK(out == before);
    }
  }
  Floats out = before;
  for (const size_t bytes : {1, 4, 7, 9, 12, 23}) {
    const Status status = DecodeTopK(Wire(24).data(), bytes, {out.data(), out.size(), 1.0f, false});
    CHECK(status.code == Code::kInvalid);
    CHECK(status.text.find("of " + std::to_string(bytes) + " bytes") != std::string::npos);
  }
  CHECK(out == before);
  CHECK_FALSE(DecodeTopK(Wire(8).data(), 8, {nullptr, 0, 1.0f, false}).ok());
  CHECK(DecodeTopK(nullptr, 0, {out.data(), out.size(), 1.0f, false}).ok());
  CHECK(out == Floats(100));
}

TEST_CASE("top-k adds factor times each value, also at an odd address and for an index that comes twice") {
  const int32_t indices[3] = {2, 2, 4};
  const float values[3] = {1, 10, 100};
  Wire wire(25);
  std::memcpy(wire.data() + 1, indices, sizeof indices);
  std::memcpy(wire.data() + 13, values, sizeof values);
  Floats out = {1, 1, 1, 1, 1};
  REQUIRE(DecodeTopK(wire.data() + 1, 24, {out.data(), 5, 0.5f, true}).ok());
  CHECK(out == Floats{1, 1, 6.5f, 1, 51});
  REQUIRE(DecodeTopK(wire.data() + 1, 24, {out.data(), 5, 2, false}).ok());
  CHECK(out == Floats{0, 0, 22, 0, 200});
}

TEST_CASE("The C API has the codecs, and says what is wrong with a message") {
  const hvd_codecs* const codecs = hvd_get_api(HVD_ABI_VERSION)->codecs;
  REQUIRE(codecs->size == sizeof(hvd_codecs));
  Floats values = {3, -1, 2, 0.5f}, out(4);
  Wire wire(codecs->int8_bytes(4, 2));
  REQUIRE(wire.size() == 12);
  codecs->int8_encode(values.data(), nullptr, nullptr, 4, 2, wire.data());
  codecs->int8_decode(wire.data(), 4, 2, 1.0f, out.data(), 0);
  CHECK(out[0] == doctest::Approx(3));
  wire.resize(codecs->onebit_bytes(4));
  codecs->onebit_encode(values.data(), nullptr, nullptr, 4, wire.data());
  codecs->onebit_decode(wire.data(), 4, 2.0f, out.data(), 0);
  CHECK(out == Floats{3.25f, -3.25f, 3.25f, 3.25f});
  hvd_status status{};
  wire.resize(8 * codecs->topk_pairs(1));
  CHECK(codecs->topk_encode(values.data(), nullptr, nullptr, 4, 1, 2, wire.data(), &status) == 1);
  CHECK(codecs->topk_decode(wire.data(), 8, 4, 1.0f, out.data(), 0, &status) == HVD_OK);
  CHECK(out == Floats{3, 0, 0, 0});
  CHECK(codecs->topk_decode(wire.data(), 7, 4, 1.0f, out.data(), 0, &status) == HVD_INVALID);
  CHECK(std::string(status.text).find("7 bytes") != std::string::npos);
  CHECK(codecs->topk_encode(values.data(), nullptr, nullptr, uint64_t{1} << 31, 1, 2, wire.data(), &status) == -1);
  CHECK(codecs->is_finite(values.data(), 4) == 1);
}

}  // namespace hvd
