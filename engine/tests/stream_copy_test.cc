// SPDX-License-Identifier: Apache-2.0
#include "collectives/stream_copy.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

TEST_CASE("StreamCopy copies every length to every place of a cache line, and nothing beside it") {
  constexpr size_t kLongest = 300, kBorder = 64;
  std::vector<std::byte> from(kLongest + 1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
  for (size_t place = 0; place < 64; ++place) {
    for (size_t bytes = 0; bytes <= kLongest; ++bytes) {
      std::vector<std::byte> to(kBorder + place + kLongest + kBorder);
      std::vector<std::byte> expected = to;
      std::memcpy(expected.data() + kBorder + place, from.data() + 1, bytes);
      hvd::StreamCopy(to.data() + kBorder + place, from.data() + 1, bytes);
      REQUIRE(to == expected);
    }
  }
}

TEST_CASE("small operations stay in the caches") { CHECK(!hvd::OutgrowsCaches(1 << 20)); }
