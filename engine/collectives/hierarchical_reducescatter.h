// SPDX-License-Identifier: Apache-2.0
// Reducescatter over hosts: each host sums what it has for the members of one column at their carrier, carriers
// exchange these sums, and each combines what is for its host. Each host sends a sum once instead of what every rank
// has. Elements are added inside the hosts first and then over hosts, whatever their number: as in hierarchical
// allreduce.
#pragma once

#include <vector>

#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalReducescatter : public Machine {
 public:
  // Whether a chunk has room for something of every member. Follows from the layout alone.
  static bool Fits(const HostGrid& grid);

  // ins[j]: the part of our tensors that member j will own; out: our own part, laid out like ins[me].
  HierarchicalReducescatter(const HostGrid& grid, const std::vector<Flat>& ins, Flat out, const Reduction& reduction);
  Step Advance() override;

 private:
  static constexpr uint64_t kInFlight = 4;  // rounds between the sum inside and the sum over hosts

  size_t Upto(int member, uint64_t round) const { return std::min(sizes_[member], round * part_bytes_); }
  size_t Length(int member, uint64_t round) const { return Upto(member, round + 1) - Upto(member, round); }
  size_t LengthOf(const std::vector<int>& members, uint64_t round) const;
  Range Piece(int column, uint64_t round) const;  // of in_
  const std::vector<int>& Column(int host) const { return columns_[grid_.ColumnOf(grid_.position)][host]; }
  bool HandsOut() const { return grid_.inside->members() > grid_.columns; }  // to members that are not carriers
  std::byte* Partial(uint64_t round) { return partials_.data() + (round % kInFlight) * partial_bytes_; }

  bool Publish();
  bool ReduceInside();
  bool ReduceAcross();
  void CombinePart(int member, size_t offset, size_t* length);
  bool TakeResult();

  HostGrid grid_;
  int me_;
  std::vector<size_t> sizes_;                           // of the parts, by owner
  std::vector<std::vector<std::vector<int>>> columns_;  // by column and host: the owners
  Flat in_;                                             // by column, then by round, then by owner
  std::vector<size_t> begins_;                          // of columns in it
  Flat out_;
  Reduction local_, cross_;
  size_t part_bytes_ = 0;  // of each owner in a round
  uint64_t rounds_ = 0, published_ = 0, reduced_ = 0, combined_ = 0, taken_ = 0;
  size_t partial_bytes_ = 0;
  std::vector<std::byte> partials_, scaled_;
  std::vector<const std::byte*> sources_;
  Outgoing outgoing_;
  bool begun_ = false;
};

}  // namespace hvd
