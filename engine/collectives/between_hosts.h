// SPDX-License-Identifier: Apache-2.0
// Reduction among ranks that are all on different hosts, block by block. It is the whole allreduce if each host has one
// rank, and otherwise the stage between hosts (see hierarchical.h). The ranks negotiate the algorithm.
//
// An algorithm in which a rank exchanges data with few others connects only to those, because a stream is opened on
// first use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// Partial sums that members exchange. Types that would be rounded after every sum travel as float32 until the sum is
// complete, so that they are rounded once, however many hosts there are.
class PartialSums {
 public:
  explicit PartialSums(const Reduction& reduction);

  // Return the size of the partial sums for `bytes` bytes of the tensor.
  size_t Size(size_t bytes) const { return bytes / element_ * SizeOf(partial_.dtype); }
  bool widened() const { return partial_.dtype != final_.dtype; }
  // Return this member's contribution: in place if it can be used directly, otherwise in `scratch`.
  const std::byte* Own(const Flat& in, Range range, std::byte* scratch);
  // Copy this member's contribution to `to`.
  void Take(const Flat& in, Range range, std::byte* to);
  // Store first (op) second, for `bytes` bytes of the tensor, in `to`, which may be either operand.
  void Add(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to) const;
  // Perform the last addition: `to` receives elements of the tensor, scaled and divided.
  void Finish(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to);

 private:
  Reduction partial_, final_;
  double prescale_;
  size_t element_;
  std::vector<std::byte> narrow_, wide_;
};

class BetweenHosts {
 public:
  // Blocks are ranges of `in`; their results go to the same ranges of `out`, which may be the same memory. The blocks
  // and their order must be equal on all members.
  struct Run {
    Flat in, out;
    Reduction reduction;
    uint64_t blocks = 0;  // number of blocks that will be added
    size_t bytes = 0;     // total size of the blocks, approximately
    bool stays = false;   // true if results in `out` stay unchanged until everything has been sent
  };

  virtual ~BetweenHosts() = default;
  // Add the next block, whose data is ready in `in`.
  virtual void Add(Range block) = 0;
  // Make all progress that is possible now; return true if there was any.
  virtual bool Advance() = 0;
  // Return how many blocks, counted from the first, have their results in `out`.
  uint64_t finished() const { return finished_; }

 protected:
  uint64_t finished_ = 0;
};

// Return how many blocks of `block` bytes should be in flight among `hosts` hosts.
uint64_t BlocksUnderWay(HostAlgorithm algorithm, int hosts, size_t block);

// `most` is the size of the largest block. All members of `exchange` must be reached by sockets.
std::unique_ptr<BetweenHosts> MakeBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, BetweenHosts::Run run,
                                               size_t most);

// Allreduce among members that are all on different hosts, by ring or doubling.
class AllreduceBetweenHosts : public Machine {
 public:
  AllreduceBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, Flat in, Flat out, const Reduction& reduction);
  Step Advance() override;

 private:
  uint64_t blocks_;
  std::unique_ptr<BetweenHosts> run_;
};

}  // namespace hvd
