// SPDX-License-Identifier: Apache-2.0
// Reduction between hosts by direct exchange. Each host owns a share of each block, sums it in host order and sends the
// result to all hosts. This takes two hops, and streams between all pairs of hosts.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class ExchangeBetweenHosts : public BetweenHosts {
 public:
  // `in` and `out` must be the same memory. Each block must be contiguous there and fit into the pieces of a chunk.
  ExchangeBetweenHosts(Exchange* exchange, Run run);
  void Add(Range block) override { blocks_.push_back(block); }
  bool Advance() override;

 private:
  Range Share(uint64_t block, int host) const;  // range of the block that `host` owns
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
