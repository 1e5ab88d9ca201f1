// SPDX-License-Identifier: Apache-2.0
// Alltoall inside one group. The first chunk tells each member how many rows to expect; then the rows follow, or are
// written straight into the outputs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/machine.h"
#include "collectives/push.h"

namespace hvd {

class Alltoall : public Machine {
 public:
  // `splits`: rows for each member, taken from `in` in order. `largest`: the largest split of any pair, which fixes the
  // number of rounds for all. `allocate` is called once with the received rows by member and returns the output.
  // `arenas`: of the members, if rows may be written straight into outputs in them; else empty.
  Alltoall(Lane* lane, const std::byte* in, std::vector<int64_t> splits, size_t row_bytes, int64_t largest,
           std::function<std::byte*(const std::vector<int64_t>&)> allocate, std::vector<std::byte*> arenas = {});
  Step Advance() override;
  bool single_copy() const override { return push_ != nullptr; }

 private:
  size_t PieceBytes(int member) const;
  size_t PieceLength(int member, int64_t rows, uint64_t round) const;
  bool TellSplits();
  bool HearSplits();
  void MakePlaces();
  bool Choose();
  void CopyOwn();
  bool Show();
  bool Collect();

  Lane* lane_;
  const std::byte* in_;
  std::vector<int64_t> splits_, received_;
  std::vector<size_t> send_begin_, receive_begin_;
  size_t row_bytes_;
  std::function<std::byte*(const std::vector<int64_t>&)> allocate_;
  std::byte* out_ = nullptr;
  std::vector<std::byte*> arenas_;
  bool may_push_;                   // until all have said where their outputs lie, nothing is shown
  std::unique_ptr<Places> places_;  // while we do not know yet which way it goes
  std::unique_ptr<Push> push_;
  uint64_t rounds_, shown_ = 0, collected_ = 0;
  bool told_ = false, heard_ = false, told_places_ = false;
  Collector collector_;
};

}  // namespace hvd
