// SPDX-License-Identifier: Apache-2.0
// Reduction between hosts by recursive halving and doubling. In each step, a host exchanges half of its remaining range
// with a partner twice as far away, until it has the sum of its share; then the shares return in reverse order. A short
// block is exchanged as a whole in every step, so nothing must return. If the number of hosts is not a power of two,
// each surplus host first sends all its data to a neighbour. A host has log2(hosts) partners, one per step.
//
// Sums form a binary tree over the hosts. The tree does not depend on the element, its position or fusion.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class DoublingBetweenHosts : public BetweenHosts {
 public:
  DoublingBetweenHosts(Exchange* exchange, Run run, size_t most);
  void Add(Range block) override;
  bool Advance() override;

  // Number of blocks in a group. The steps of these blocks alternate, so that one block travels while another is added.
  static constexpr uint64_t kTogether = 4;

  // One step of a block for one member. Ranges are relative to the block.
  struct Move {
    int to = -1, from = -1;  // members; -1 if nothing is sent, or received
    Range sent{0, 0}, awaited{0, 0};
    enum class Then { kAdd, kFinish, kKeep } then = Then::kKeep;  // what to do with the received data
    bool first = false;                                           // true if the received data is the left operand
  };
  // Return all steps of a block of `length` bytes; their number is equal on all members. If `whole`, every step
  // exchanges the complete block.
  static std::vector<Move> Plan(int members, int me, size_t length, bool whole);

 private:
  struct Cursor {  // position in the order of all steps of all blocks
    uint64_t group = 0, block = 0;
    size_t step = 0;
  };
  struct Block {
    Range range;
    bool whole;
    std::vector<Move> moves;
    size_t taken = 0;  // steps whose messages have arrived
  };
  struct Work {  // buffers of a block in flight
    std::vector<std::byte> partial, result;
    uint64_t last_post = 0;
  };

  // Return the block at the cursor; null if it has not been added yet, or if no block is left.
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
