// SPDX-License-Identifier: Apache-2.0
// Between hosts around a ring: partial sums travel from the first host to the last, each adding its own, and the result
// goes on around the ring to all others. Many chunks are under way at once, so that all links are busy. Every host has
// two neighbours however many hosts there are; bytes are those of any ring, and sums are taken in the order of the
// hosts: the bits are those of direct exchange.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class RingBetweenHosts : public BetweenHosts {
 public:
  RingBetweenHosts(Exchange* exchange, Run run);
  void Add(Range block) override;
  bool Advance() override;

  // A chunk passes every host twice before the last one has its result: small ones keep all links busy. What is larger
  // than a packet gains nothing.
  static constexpr size_t kMostChunk = size_t{60} << 10;

 private:
  struct Chunk {
    Range range;
    bool ends_block;
  };

  bool AddOwn();
  void FinishSum(const Range& range, const std::byte* before);
  bool TakeResult();
  // Results are passed on from where they lie, if they stay there.
  void PassOn(int member, const std::byte* lies, const std::byte* result, size_t length);

  Exchange* exchange_;
  Run run_;
  PartialSums sums_;
  size_t chunk_bytes_;  // of the tensor
  std::vector<Chunk> chunks_;
  uint64_t added_ = 0, received_ = 0;
  std::vector<std::byte> own_;
};

}  // namespace hvd
