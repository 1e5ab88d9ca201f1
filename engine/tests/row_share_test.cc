// SPDX-License-Identifier: Apache-2.0
#include "base/row_share.h"

#include <doctest/doctest.h>

using hvd::ShareOfRows;

TEST_CASE("row share: the members' shares follow each other, and differ by one row at the most") {
  for (int64_t members : {1, 2, 3, 7}) {
    for (int64_t rows = 0; rows < 3 * members; ++rows) {
      int64_t next = 0;
      for (int64_t member = 0; member < members; ++member) {
        const auto share = ShareOfRows(rows, members, member);
        CHECK(share.begin == next);
        CHECK(share.rows == rows / members + (member < rows % members ? 1 : 0));
        next += share.rows;
      }
      CHECK(next == rows);
    }
  }
}
