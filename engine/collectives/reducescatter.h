// SPDX-License-Identifier: Apache-2.0
// Reducescatter inside one group: the first half of an allreduce, in which members own whole rows as the API requires.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Reducescatter : public Machine {
 public:
  // ins[j] is the part of this member's tensors that member j will own; `out` is its own part, laid out like ins[me].
  Reducescatter(Lane* lane, std::vector<Flat> ins, Flat out, Reduction reduction);
  Step Advance() override;

 private:
  size_t PieceLength(int member, uint64_t round) const;
  bool Publish();
  bool ReduceOwn();

  Lane* lane_;
  std::vector<Flat> ins_;
  Flat out_;
  Reduction reduction_;
  uint64_t rounds_ = 0, published_ = 0, reduced_ = 0;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte> scaled_;
};

}  // namespace hvd
