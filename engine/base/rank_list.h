// SPDX-License-Identifier: Apache-2.0
// How a list of ranks is worded in messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hvd {

// Return a text such as "1, 3, 5", cut after a few.
inline std::string ListOfRanks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kMost; ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

// Return a text such as "rank 3" or "ranks 0, 2", cut after a few.
inline std::string NameRanks(const std::vector<int>& ranks) {
  return (ranks.size() > 1 ? "ranks " : "rank ") + ListOfRanks(ranks);
}

}  // namespace hvd
