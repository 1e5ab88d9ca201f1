// SPDX-License-Identifier: Apache-2.0
// How a lane cuts messages into chunks, which all members must do identically.
#include "transport/lane.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using hvd::Lane;
using hvd::LaneOptions;

constexpr size_t kPacket = size_t{60} << 10;

Lane NewLane(int members, size_t chunk_bytes, bool apart) {
  LaneOptions options;
  options.members = members;
  options.slot_bytes = chunk_bytes;
  options.apart = apart;
  const auto count = static_cast<size_t>(members);
  return Lane(options, std::vector<hvd::LaneHead*>(count), std::vector<hvd::StreamKey>(count), nullptr, [] {});
}

}  // namespace

TEST_CASE("members that are apart send whole packets") {
  Lane two = NewLane(2, 512 << 10, true);
  CHECK(two.slot_bytes() == 8 * kPacket);
  CHECK(two.piece_bytes() == 4 * kPacket);
  Lane three = NewLane(3, 512 << 10, true);
  CHECK(three.piece_bytes() == 2 * kPacket);
  Lane eight = NewLane(8, 512 << 10, true);
  CHECK(eight.piece_bytes() == kPacket);
  two.set_chunk_bytes(32 << 10);
  CHECK(two.slot_bytes() == 32 << 10);
  CHECK(two.piece_bytes() == 16 << 10);
}

TEST_CASE("members that share memory keep the size of chunks that was set") {
  Lane two = NewLane(2, 256 << 10, false);
  CHECK(two.slot_bytes() == 256 << 10);
  CHECK(two.piece_bytes() == 128 << 10);
}

TEST_CASE("a slot holds a piece for every member, on cache-line borders") {
  for (bool apart : {false, true}) {
    for (int members = 2; members < 100; ++members) {
      for (size_t bytes : {size_t{4096} * 100, size_t{256} << 10, size_t{1} << 20}) {
        const Lane lane = NewLane(members, bytes, apart);
        CAPTURE(members);
        CAPTURE(bytes);
        CHECK(lane.piece_bytes() > 0);
        CHECK(lane.piece_bytes() % 64 == 0);
        CHECK(lane.piece_bytes() * static_cast<size_t>(members) <= lane.slot_bytes());
      }
    }
  }
}
