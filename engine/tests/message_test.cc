// SPDX-License-Identifier: Apache-2.0
// Round trips of the wire format, and hostile input: truncated, flipped, random, and with absurd lengths.
#include "agreement/message.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/wire.h"

namespace hvd {
namespace {

Request FullRequest() {
  Request request;
  request.kind = OpKind::kAlltoall;
  request.dtype = DType::kBFloat16;
  request.op = ReduceOp::kProduct;
  request.root = 7;
  request.device = 3;
  request.prescale = 0.25;
  request.postscale = -1e300;
  request.name = std::string("grad\0/ü", 8);
  request.shape = {4, 0, int64_t{1} << 40};
  request.splits = {1, 0, 3};
  request.group = "grouped";
  request.group_size = 5;
  return request;
}

Record FullRecord() {
  Record record;
  record.sequence = 0x0123456789abcdefu;
  Entry cached;
  cached.slot = 12;
  cached.cached = true;
  Entry full;
  full.slot = 13;
  full.request = FullRequest();
  full.sizes = {-1, 2, std::numeric_limits<int64_t>::max()};
  record.entries = {cached, full, Entry()};
  record.names = {"a", "", std::string(300, 'x')};
  record.rounds = {0, kNoRound, 7};
  record.error = Status::Mismatch("Mismatched data types");
  record.evicted = {1, 2, kNoSlot};
  record.tuning = {1, 2, uint64_t{1} << 63, true};
  record.turns = {{-1, 2, uint64_t{1} << 63}, {}};
  return record;
}

template <typename T>
std::string Encoded(const T& value) {
  std::string bytes;
  Encode(value, &bytes);
  return bytes;
}

void CheckEqual(const Record& a, const Record& b) {
  CHECK(a.kind == b.kind);
  CHECK(a.sequence == b.sequence);
  CHECK(a.names == b.names);
  CHECK(a.rounds == b.rounds);
  CHECK(a.error.code == b.error.code);
  CHECK(a.error.text == b.error.text);
  CHECK(a.evicted == b.evicted);
  if (a.kind == RecordKind::kTune) CHECK((a.tuning == b.tuning && a.tuning.final == b.tuning.final));
  if (a.kind == RecordKind::kTurns) CHECK(a.turns == b.turns);
  REQUIRE(a.entries.size() == b.entries.size());
  for (size_t i = 0; i < a.entries.size(); ++i) {
    CHECK(a.entries[i].slot == b.entries[i].slot);
    CHECK(a.entries[i].cached == b.entries[i].cached);
    CHECK(a.entries[i].request == b.entries[i].request);
    CHECK(a.entries[i].sizes == b.entries[i].sizes);
  }
}

TEST_CASE("a request survives the wire, and leaves what follows it") {
  for (const Request& request : {FullRequest(), Request()}) {
    const std::string bytes = Encoded(request) + "rest";
    std::string_view in = bytes;
    Request decoded;
    REQUIRE(Decode(&in, &decoded));
    CHECK(decoded == request);
    CHECK(in == "rest");
  }
}

TEST_CASE("a record survives the wire, also into one that was used before") {
  Record decoded = FullRecord();
  for (RecordKind kind :
       {RecordKind::kBatch, RecordKind::kError, RecordKind::kEvict, RecordKind::kTune, RecordKind::kTurns}) {
    for (Record record : {FullRecord(), Record()}) {
      record.kind = kind;
      const std::string bytes = Encoded(record);
      std::string_view in = bytes;
      REQUIRE(Decode(&in, &decoded));
      CheckEqual(decoded, record);
      CHECK(in.empty());
    }
  }
}

TEST_CASE("a cached entry is its slot alone") {
  Record known;
  known.entries.resize(1);
  known.entries[0].cached = true;
  Record described = known;
  described.entries[0].request = FullRequest();
  described.entries[0].sizes = {1, 2, 3};
  CHECK(Encoded(known) == Encoded(described));
}

TEST_CASE("rounds go with the names of an error and with the slots of an eviction, or are left out") {
  for (size_t count = 0; count < 4; ++count) {
    for (RecordKind kind : {RecordKind::kError, RecordKind::kEvict}) {
      Record record, decoded;
      record.kind = kind;
      record.names.resize(kind == RecordKind::kError ? 2 : 3);
      record.evicted.resize(kind == RecordKind::kEvict ? 2 : 3);
      record.rounds.resize(count, 9);
      const std::string bytes = Encoded(record);
      std::string_view in = bytes;
      CHECK(Decode(&in, &decoded) == (count == 0 || count == 2));
    }
  }
}

TEST_CASE("every truncation is refused") {
  const std::string request = Encoded(FullRequest());
  for (size_t size = 0; size < request.size(); ++size) {
    // A separate allocation, so that a sanitizer notices a read past its end.
    std::string exact = request.substr(0, size);
    std::string_view in = exact;
    Request decoded;
    CHECK_FALSE(Decode(&in, &decoded));
  }
  Record tuning = FullRecord();
  tuning.kind = RecordKind::kTune;
  const std::string record = Encoded(tuning);
  for (size_t size = 0; size < record.size(); ++size) {
    std::string exact = record.substr(0, size);
    std::string_view in = exact;
    Record decoded;
    CHECK_FALSE(Decode(&in, &decoded));
  }
}

TEST_CASE("random bytes and flipped bits neither crash nor read too far") {
  std::mt19937 random(1);
  Record tuning = FullRecord();
  tuning.kind = RecordKind::kTune;
  const std::string valid = Encoded(tuning);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = valid;
    if (round % 2 == 0) {
      bytes.resize(random() % 200);
      for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : 0);
    } else {
      for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
    }
    std::string_view in = bytes;
    Record record;
    if (Decode(&in, &record)) CHECK(in.size() <= bytes.size());
    in = bytes;
    Request request;
    if (Decode(&in, &request)) CHECK(request.Bytes() >= 0);
  }
}

TEST_CASE("an absurd length is refused before memory is asked for") {
  for (uint32_t length : {0xffffffffu, 0x80000000u, 1000u}) {
    std::string bytes;  // a record that claims `length` entries
    wire::Put<uint8_t>(&bytes, 0);
    wire::Put<uint64_t>(&bytes, 1);
    wire::Put<uint32_t>(&bytes, length);
    bytes.append(64, '\0');
    std::string_view in = bytes;
    Record record;
    CHECK_FALSE(Decode(&in, &record));
    CHECK(record.entries.capacity() == 0);

    bytes.clear();  // no entries, but `length` names
    wire::Put<uint8_t>(&bytes, 0);
    wire::Put<uint64_t>(&bytes, 1);
    wire::Put<uint32_t>(&bytes, 0);
    wire::Put<uint32_t>(&bytes, length);
    bytes.append(64, '\0');
    in = bytes;
    CHECK_FALSE(Decode(&in, &record));
    CHECK(record.names.capacity() == 0);

    std::string text_bytes;
    wire::Put<uint32_t>(&text_bytes, length);
    text_bytes.append(64, '\0');
    std::string text;
    std::vector<int64_t> values;
    in = text_bytes;
    CHECK_FALSE(wire::GetString(&in, &text));
    in = text_bytes;
    CHECK_FALSE(wire::GetVector(&in, &values));
    CHECK(values.capacity() == 0);
  }
}

TEST_CASE("values outside their enumeration are refused") {
  const std::string valid = Encoded(FullRequest());
  const struct {
    size_t offset;
    uint8_t first_bad;
  } fields[] = {{0, 9}, {1, kDTypeCount}, {2, 6}};
  for (const auto& field : fields) {
    for (uint8_t bad : {field.first_bad, uint8_t{255}}) {
      std::string bytes = valid;
      bytes[field.offset] = static_cast<char>(bad);
      std::string_view in = bytes;
      Request request;
      CHECK_FALSE(Decode(&in, &request));
    }
  }
  std::string bytes = Encoded(Record());
  bytes[0] = 3;
  std::string_view in = bytes;
  Record record;
  CHECK_FALSE(Decode(&in, &record));
  Record bad_code;
  bad_code.error.code = static_cast<Code>(-1);
  bytes = Encoded(bad_code);
  in = bytes;
  CHECK_FALSE(Decode(&in, &record));
}

TEST_CASE("a negative dimension is refused") {
  Request request;
  request.shape = {2, -1};
  const std::string bytes = Encoded(request);
  std::string_view in = bytes;
  CHECK_FALSE(Decode(&in, &request));
}

TEST_CASE("the wire format stays as it is") {
  Request request;
  request.name = "x";
  request.shape = {2};
  const std::string bytes = Encoded(request);
  CHECK(bytes.size() == 3 + 4 + 4 + 8 + 8 + (4 + 1) + (4 + 8) + 4 + 4 + 4 + 8);
  CHECK(bytes.substr(0, 11) == std::string("\x00\x07\x01\xff\xff\xff\xff\xff\xff\xff\xff", 11));
}

TEST_CASE("elements and bytes") {
  const struct {
    std::vector<int64_t> shape;
    int64_t elements;
  } cases[] = {{{}, 1}, {{0}, 0}, {{2, 3, 4}, 24}, {{5, 0, 7}, 0}, {{int64_t{1} << 40, int64_t{1} << 40, 0}, 0}};
  for (const auto& c : cases) {
    Request request;
    request.shape = c.shape;
    request.dtype = DType::kFloat64;
    CHECK(request.Elements() == c.elements);
    CHECK(request.Bytes() == static_cast<size_t>(c.elements) * 8);
  }
  Request huge;
  huge.shape = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK(huge.Elements() == std::numeric_limits<int64_t>::max());
  CHECK(huge.Bytes() == std::numeric_limits<size_t>::max());
}

TEST_CASE("every field of a request counts when two are compared") {
  using Change = void (*)(Request*);
  const Change changes[] = {
      [](Request* r) { r->kind = OpKind::kBarrier; },
      [](Request* r) { r->dtype = DType::kBool; },
      [](Request* r) { r->op = ReduceOp::kMin; },
      [](Request* r) { r->root = 0; },
      [](Request* r) { r->device = -1; },
      [](Request* r) { r->prescale = 2; },
      [](Request* r) { r->postscale = 2; },
      [](Request* r) { r->name = "other"; },
      [](Request* r) { r->shape = {1}; },
      [](Request* r) { r->splits = {1}; },
      [](Request* r) { r->group = "other"; },
      [](Request* r) { r->group_size = 1; },
  };
  for (Change change : changes) {
    Request changed = FullRequest();
    CHECK(changed == FullRequest());
    change(&changed);
    CHECK_FALSE(changed == FullRequest());
  }
}

TEST_CASE("factors that are no numbers are the same to a cache, whatever their bits; 0 and -0 are not") {
  Request one = FullRequest(), other = FullRequest();
  one.prescale = std::nan("");
  other.prescale = -std::nan("1");
  CHECK(one == other);
  one.prescale = 0.0;
  CHECK_FALSE(one == other);
  other.prescale = -0.0;
  CHECK_FALSE(one == other);
}

}  // namespace
}  // namespace hvd
