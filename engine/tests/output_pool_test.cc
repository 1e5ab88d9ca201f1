// SPDX-License-Identifier: Apache-2.0
// Outputs that callers have freed come back for the next ones, within limits.
#include "core/output_pool.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

TEST_CASE("a freed output is used again for one of about its size") {
  hvd::TrimOutputs();
  void* first = hvd::AllocateOutput(1 << 20);
  REQUIRE(first);
  CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
  std::memset(first, 1, 1 << 20);
  hvd::FreeOutput(first);
  void* smaller = hvd::AllocateOutput(900'000);
  CHECK(smaller == first);
  void* other = hvd::AllocateOutput(900'000);
  CHECK(other != first);
  hvd::FreeOutput(smaller);
  void* much_smaller = hvd::AllocateOutput(200'000);
  CHECK(much_smaller != first);  // it would keep a megabyte for a fifth of one
  hvd::FreeOutput(other);
  hvd::FreeOutput(much_smaller);
  hvd::TrimOutputs();
}

TEST_CASE("outputs of every size can be written to their end and freed") {
  std::vector<void*> outputs;
  for (size_t bytes : {0ul, 1ul, 64ul, 100'000ul, 3ul << 20, 200ul << 20}) {  // the last is more than is ever kept
    void* output = hvd::AllocateOutput(bytes);
    REQUIRE(output);
    std::memset(output, 7, bytes);
    outputs.push_back(output);
  }
  for (void* output : outputs) hvd::FreeOutput(output);
  hvd::FreeOutput(nullptr);
  hvd::TrimOutputs();
}
