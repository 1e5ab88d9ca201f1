// SPDX-License-Identifier: Apache-2.0
// Allreduce inside one group. Small messages: everybody shows everything and reduces all of it, one hop. Larger ones,
// in chunks: each member shows every other member the piece that it owns, the owner sums in rank order and shows the
// result. Both sum the same elements in the same order and round once, so the choice never changes a bit.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class SmallAllreduce : public Machine {
 public:
  // in.size() <= the lane's slot. `hosts`: members by host where larger messages go by the hierarchy, else null; the
  // sum is then taken in the hierarchy's order, so that size and fusion never change a bit there either.
  SmallAllreduce(Lane* lane, Flat in, Flat out, Reduction reduction, const std::vector<std::vector<int>>* hosts);
  Step Advance() override;

 private:
  void ReduceByHosts();

  Lane* lane_;
  Flat in_, out_;
  Reduction reduction_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte> scaled_;
  const std::vector<std::vector<int>>* hosts_;
  const std::byte* own_ = nullptr;  // what we posted
  bool posted_ = false;
};

class Allreduce : public Machine {
 public:
  Allreduce(Exchange* exchange, Flat in, Flat out, Reduction reduction);
  Step Advance() override;

 private:
  Range Piece(uint64_t chunk, int member) const;  // of the batch
  bool Publish();
  bool ReduceOwn();
  bool Collect();

  Exchange* exchange_;
  Flat in_, out_;
  Reduction reduction_;
  size_t chunk_bytes_;
  uint64_t chunks_;
  uint64_t published_ = 0, reduced_ = 0, collected_ = 0;
  Collector collector_;
  std::vector<const std::byte*> sources_;
  Outgoing outgoing_;
  std::vector<std::byte> scaled_;
};

// Combines sources (one for each member in order; sources[me] is taken from `in`, by way of `scratch` if it must be
// scaled or converted) over [begin, begin + length) of the batch into `out` and into `copy`; either may be null.
void ReducePiece(const Reduction& reduction, const Flat& in, const Flat* out, size_t begin, size_t length,
                 const std::vector<const std::byte*>& sources, int me, std::vector<std::byte>* scratch,
                 std::byte* copy);

}  // namespace hvd
