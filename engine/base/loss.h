// SPDX-License-Identifier: Apache-2.0
// Why the world ends, in words that every rank repeats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

struct LastWords {
  int32_t lost_rank = -1;  // -1: nobody in particular
  std::string why;
};

// "rank 2 is lost (on host 'b'): its process ended". The one way to say it, whoever finds out.
inline std::string NameLoss(int rank, const std::string& host, std::string_view why) {
  return "rank " + std::to_string(rank) + " is lost (on host '" + host + "'): " + std::string(why);
}

}  // namespace hvd
