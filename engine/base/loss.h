// SPDX-License-Identifier: Apache-2.0
// Reason for which the world ends; every rank reports it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

struct LastWords {
  int32_t lost_rank = -1;  // -1: no particular rank
  std::string why;
};

// Return e.g. "rank 2 is lost (on host 'b'): its process ended". Every rank that detects a loss uses this wording.
inline std::string NameLoss(int rank, const std::string& host, std::string_view why) {
  return "rank " + std::to_string(rank) + " is lost (on host '" + host + "'): " + std::string(why);
}

}  // namespace hvd
