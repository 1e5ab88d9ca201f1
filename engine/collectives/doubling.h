// SPDX-License-Identifier: Apache-2.0
// Between hosts by recursive halving and doubling: with every step a host exchanges half of what is left with a partner
// twice as far away, until it has the sum of its share; then the shares come back the same way. Of short blocks all is
// exchanged in every step, and nothing need come back. Hosts beyond a power of two first hand all they have to a
// neighbour. Each host knows one partner for each step, log2(hosts) of them.
//
// Sums are a binary tree over the hosts, the same for every element, whatever it is fused with and wherever it lies.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class DoublingBetweenHosts : public BetweenHosts {
 public:
  DoublingBetweenHosts(Exchange* exchange, Run run, size_t most);
  void Add(Range block) override;
  bool Advance() override;

  // Blocks of a group take their steps in turn, so that one travels while another is added.
  static constexpr uint64_t kTogether = 4;

  // One step of a block, as one member takes it. Ranges are of the block.
  struct Move {
    int to = -1, from = -1;  // members; -1: nothing is sent, or awaited
    Range sent{0, 0}, awaited{0, 0};
    enum class Then { kAdd, kFinish, kKeep } then = Then::kKeep;  // with what came
    bool first = false;                                           // what came is the left operand
  };
  // All steps of a block of `length` bytes. Every member has the same number of them. `whole`: all is exchanged in
  // every step.
  static std::vector<Move> Plan(int members, int me, size_t length, bool whole);

 private:
  struct Cursor {  // where in the order of all steps of all blocks
    uint64_t group = 0, block = 0;
    size_t step = 0;
  };
  struct Block {
    Range range;
    bool whole;
    std::vector<Move> moves;
    size_t taken = 0;  // steps whose messages have come
  };
  struct Work {  // memory of a block under way
    std::vector<std::byte> partial, result;
    uint64_t last_post = 0;
  };

  // The block that stands there; null while it has not been added, or when there is none any more.
  Block* At(Cursor* cursor);
  Work& WorkOf(const Cursor& cursor) { return work_[cursor.block % work_.size()]; }
  std::byte* ResultOf(Work& work) const { return sums_.widened() ? work.result.data() : work.partial.data(); }
  bool Post();
  bool Take();
  void Use(const Move& move, const std::byte* came, Work* work);

  Exchange* exchange_;
  Run run_;
  PartialSums sums_;
  size_t most_whole_;
  std::vector<Block> blocks_;
  std::vector<Work> work_;
  std::vector<std::byte> came_;
  Cursor posting_, taking_;
  uint64_t posts_ = 0, takes_ = 0;
};

}  // namespace hvd
