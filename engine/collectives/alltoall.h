// SPDX-License-Identifier: Apache-2.0
// Alltoall inside one group. The first chunk tells each member how many rows to expect; then the rows follow.
#pragma once

#include <functional>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Alltoall : public Machine {
 public:
  // `splits`: rows for each member, taken from `in` in order. `largest`: the largest split of any pair, which fixes the
  // number of rounds for all. `allocate` is called once with the received rows by member and returns the output.
  Alltoall(Lane* lane, const std::byte* in, std::vector<int64_t> splits, size_t row_bytes, int64_t largest,
           std::function<std::byte*(const std::vector<int64_t>&)> allocate);
  Step Advance() override;

 private:
  size_t PieceLength(int64_t rows, uint64_t round) const;
  bool TellSplits();
  bool HearSplits();
  bool Show();
  bool Collect();

  Lane* lane_;
  const std::byte* in_;
  std::vector<int64_t> splits_, received_;
  std::vector<size_t> send_begin_, receive_begin_;
  size_t row_bytes_;
  std::function<std::byte*(const std::vector<int64_t>&)> allocate_;
  std::byte* out_ = nullptr;
  uint64_t rounds_, shown_ = 0, collected_ = 0;
  bool told_ = false, heard_ = false;
  Collector collector_;
};

}  // namespace hvd
