// SPDX-License-Identifier: Apache-2.0
// How the rows of a tensor are divided among the members of a process set, for
// example by reducescatter.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvd {

struct RowShare {
  int64_t begin;
  int64_t rows;
};

// Return a member's share of `rows`. The first `rows % members` members get one
// row more than the others.
constexpr RowShare ShareOfRows(int64_t rows, int64_t members, int64_t member) {
  const int64_t each = rows / members, more = rows % members;
  return {each * member + std::min(member, more), each + (member < more)};
}

}  // namespace hvd
