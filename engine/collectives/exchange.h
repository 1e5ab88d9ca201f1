// SPDX-License-Identifier: Apache-2.0
// Between hosts by direct exchange: of each block every host owns a share, which it sums in the order of the hosts and
// shows to all. Two hops, and streams between all pairs.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class ExchangeBetweenHosts : public BetweenHosts {
 public:
  // `in` and `out` are the same memory; each block lies in one piece there and fits the pieces of a chunk.
  ExchangeBetweenHosts(Exchange* exchange, Run run);
  void Add(Range block) override { blocks_.push_back(block); }
  bool Advance() override;

 private:
  Range Share(uint64_t block, int host) const;  // of the block, by member
  std::byte* At(uint64_t block) const { return run_.out.Contiguous(blocks_[block].begin, blocks_[block].length); }
  bool Send();
  bool Reduce();
  bool Collect();

  Exchange* exchange_;
  Run run_;
  Reduction reduction_;
  std::vector<Range> blocks_;
  uint64_t sent_ = 0, reduced_ = 0;
  std::vector<const std::byte*> sources_;
  std::vector<size_t> lengths_;
  std::vector<const std::byte*> pieces_;
  Collector collector_;
};

}  // namespace hvd
