// SPDX-License-Identifier: Apache-2.0
// Reducescatter over hosts. Each host sums its data for the members of one column at its forwarding rank, the
// forwarding ranks exchange these sums, and each combines the sums for its host. Each host sends a sum once instead of
// the data of every rank. Elements are added inside hosts first and then over hosts, for any number of elements, as in
// hierarchical allreduce.
#pragma once

#include <vector>

#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalReducescatter : public Machine {
 public:
  // Return true if a chunk has room for data of every member. This depends on the layout only.
  static bool Fits(const HostGrid& grid);

  // ins[j] is the part of this rank's tensors that member j will own; `out` is this rank's own part, laid out like
  // ins[me].
  HierarchicalReducescatter(const HostGrid& grid, const std::vector<Flat>& ins, Flat out, const Reduction& reduction);
  Step Advance() override;

 private:
  static constexpr uint64_t kInFlight = 4;  // rounds between the sum inside the host and the sum over hosts

  size_t Upto(int member, uint64_t round) const { return std::min(sizes_[member], round * part_bytes_); }
  size_t Length(int member, uint64_t round) const { return Upto(member, round + 1) - Upto(member, round); }
  size_t LengthOf(const std::vector<int>& members, uint64_t round) const;
  Range Piece(int column, uint64_t round) const;  // range in in_ that a column contributes in this round
  const std::vector<int>& Column(int host) const { return columns_[grid_.ColumnOf(grid_.position)][host]; }
  // Return true if some members of this host are not forwarding ranks, so that their results must be posted to them.
  bool HandsOut() const { return grid_.inside->members() > grid_.columns; }
  std::byte* Partial(uint64_t round) { return partials_.data() + (round % kInFlight) * partial_bytes_; }

  bool Publish();
  bool ReduceInside();
  bool ReduceAcross();
  void CombinePart(int member, size_t offset, size_t* length);
  bool TakeResult();

  HostGrid grid_;
  int me_;
  std::vector<size_t> sizes_;                           // size of each owner's part
  std::vector<std::vector<std::vector<int>>> columns_;  // owners, by column and host
  Flat in_;                                             // input, ordered by column, then round, then owner
  std::vector<size_t> begins_;                          // beginning of each column in in_
  Flat out_;
  Reduction local_, cross_;
  size_t part_bytes_ = 0;  // bytes of each owner in a round
  uint64_t rounds_ = 0, published_ = 0, reduced_ = 0, combined_ = 0, taken_ = 0;
  size_t partial_bytes_ = 0;
  std::vector<std::byte> partials_, scaled_;
  std::vector<const std::byte*> sources_;
  Outgoing outgoing_;
  bool begun_ = false;
};

}  // namespace hvd
