// SPDX-License-Identifier: Apache-2.0
// A reduction among ranks of which each is on a host of its own, block after block. Allreduce with one rank on each
// host consists of it; with several it is the stage between them (see hierarchical.h). Which algorithm runs is agreed
// upon.
//
// Algorithms that know only a few of the others connect only to those: a stream is made when bytes first use it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// What members tell each other on the way to a sum. Types that are rounded after a sum travel as float32 until it is
// complete, so that they are rounded once, however many hosts there are.
class PartialSums {
 public:
  explicit PartialSums(const Reduction& reduction);

  // Bytes that the partial sums of `bytes` bytes of the tensor take.
  size_t Size(size_t bytes) const { return bytes / element_ * SizeOf(partial_.dtype); }
  bool widened() const { return partial_.dtype != final_.dtype; }
  // What this member contributes: where it lies if it can be used like that, else in `scratch`.
  const std::byte* Own(const Flat& in, Range range, std::byte* scratch);
  void Take(const Flat& in, Range range, std::byte* to);
  // first (op) second, of `bytes` bytes of the tensor. `to` may be either of them.
  void Add(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to) const;
  // The same for the last time: `to` receives elements of the tensor, scaled and divided.
  void Finish(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to);

 private:
  Reduction partial_, final_;
  double prescale_;
  size_t element_;
  std::vector<std::byte> narrow_, wide_;
};

class BetweenHosts {
 public:
  // All blocks are ranges of `in` and go to the same ranges of `out`, which may be the same memory. Members add the
  // same blocks in the same order.
  struct Run {
    Flat in, out;
    Reduction reduction;
    uint64_t blocks = 0;  // that will be added
    size_t bytes = 0;     // of all of them, more or less
    bool stays = false;   // what lies in `out` stays there until everything has been sent
  };

  virtual ~BetweenHosts() = default;
  // The next block is ready in `in`.
  virtual void Add(Range block) = 0;
  // Does what can be done now; true if anything moved.
  virtual bool Advance() = 0;
  // Blocks whose results are in `out`, from the first.
  uint64_t finished() const { return finished_; }

 protected:
  uint64_t finished_ = 0;
};

// Blocks of so many bytes that should be under way at once among so many hosts.
uint64_t BlocksUnderWay(HostAlgorithm algorithm, int hosts, size_t block);

// `most`: the largest block. All members of the exchange are reached by sockets.
std::unique_ptr<BetweenHosts> MakeBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, BetweenHosts::Run run,
                                               size_t most);

// Allreduce among members of which each is on a host of its own, by ring or doubling.
class AllreduceBetweenHosts : public Machine {
 public:
  AllreduceBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, Flat in, Flat out, const Reduction& reduction);
  Step Advance() override;

 private:
  uint64_t blocks_;
  std::unique_ptr<BetweenHosts> run_;
};

}  // namespace hvd
