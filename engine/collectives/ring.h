// SPDX-License-Identifier: Apache-2.0
// Reduction between hosts around a ring. Partial sums travel from the first host to the last, and each host adds its
// own data; the result continues around the ring to all other hosts. Many chunks are in flight, so that all links are
// busy. Each host has two neighbours, however many hosts there are. The traffic is that of any ring, and sums are taken
// in host order, so the bits equal those of direct exchange.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class RingBetweenHosts : public BetweenHosts {
 public:
  RingBetweenHosts(Exchange* exchange, Run run);
  void Add(Range block) override;
  bool Advance() override;

  // Maximum chunk size. A chunk passes every host twice before the last one has its result, so small chunks keep all
  // links busy. A chunk that is larger than a packet saves nothing.
  static constexpr size_t kMostChunk = size_t{60} << 10;

 private:
  struct Chunk {
    Range range;
    bool ends_block;
  };

  bool AddOwn();
  void FinishSum(const Range& range, const std::byte* before);
  bool TakeResult();
  // Send a result to `member`: from its place in the output if it stays there, else through the slot.
  void PassOn(int member, const std::byte* lies, const std::byte* result, size_t length);

  Exchange* exchange_;
  Run run_;
  PartialSums sums_;
  size_t chunk_bytes_;  // in bytes of the tensor
  std::vector<Chunk> chunks_;
  uint64_t added_ = 0, received_ = 0;
  std::vector<std::byte> own_;
};

}  // namespace hvd
