// SPDX-License-Identifier: Apache-2.0
// Alltoall inside one group. The first chunk gives each member the number of rows to expect. The rows follow, or they
// are written directly into the outputs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/machine.h"
#include "collectives/push.h"

namespace hvd {

class Alltoall : public Machine {
 public:
  // `splits` are the numbers of rows for each member, taken from `in` in order. `largest` is the largest split of any
  // pair, which determines the number of rounds. `allocate` is called once with the received rows by member and returns
  // the output. `arenas` are those of the members if rows may be written directly into outputs there, otherwise empty.
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
  bool may_push_;  // if true, no rows are posted before all members have posted the offsets of their outputs
  std::unique_ptr<Places> places_;  // exists until it is decided whether rows are written directly
  std::unique_ptr<Push> push_;
  uint64_t rounds_, shown_ = 0, collected_ = 0;
  bool told_ = false, heard_ = false, told_places_ = false;
  Collector collector_;
};

}  // namespace hvd
