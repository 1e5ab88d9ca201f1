// SPDX-License-Identifier: Apache-2.0
// Allreduce inside one group. For a small message, each member posts all its data and reduces all data itself, which
// takes one hop. For a larger one, each member posts to every other member the piece of a chunk that this member owns;
// the owner sums in rank order and posts the result. The order of the sums does not depend on the choice, and both
// round once, so the choice never changes a bit.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class SmallAllreduce : public Machine {
 public:
  // in.size() must not exceed the lane's slot. `hosts` lists the members by host if larger messages use the
  // hierarchical algorithm, otherwise it is null. With `hosts`, the sum is taken in hierarchical order, so that size
  // and fusion never change a bit.
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
  const std::byte* own_ = nullptr;  // data that this member posted
  bool posted_ = false;
};

class Allreduce : public Machine {
 public:
  Allreduce(Exchange* exchange, Flat in, Flat out, Reduction reduction);
  Step Advance() override;

 private:
  Range Piece(uint64_t chunk, int member) const;  // range in the batch
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

// Combine the sources, one per member in order, over [begin, begin + length) of the batch into `out` and `copy`; either
// may be null. sources[me] is taken from `in`, through `scratch` if it must be scaled or converted.
void ReducePiece(const Reduction& reduction, const Flat& in, const Flat* out, size_t begin, size_t length,
                 const std::vector<const std::byte*>& sources, int me, std::vector<std::byte>* scratch,
                 std::byte* copy);

}  // namespace hvd
