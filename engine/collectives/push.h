// SPDX-License-Identifier: Apache-2.0
// Direct writes, which copy data once instead of twice. If the outputs of all members lie in memory that all can
// access, each member writes its data directly into them. The members exchange the offsets of their outputs, write, and
// synchronise at the end. If one output lies elsewhere, all members use staging.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// Offsets of the members' outputs. Each member posts an equal number of values at one lane index.
class Places {
 public:
  static constexpr int64_t kElsewhere = -1;

  // arenas[j] is the address of member j's arena in this process. own[i] is an offset in this member's arena, or
  // kElsewhere.
  Places(Lane* lane, std::vector<std::byte*> arenas, std::vector<int64_t> own);
  static bool Fit(const Lane& lane, size_t count) { return count * sizeof(int64_t) <= lane.slot_bytes(); }
  // Memory of an input or an output.
  struct Span {
    const std::byte* data;
    size_t bytes;
  };
  // Return the offset of an output in `arena`, or kElsewhere. An output that overlaps the input counts as elsewhere,
  // because other members would overwrite the input. An output of size 0 has the offset 0.
  static int64_t In(const std::byte* arena, Span output, Span input);

  // Post this member's values; return false if no slot is free.
  bool Tell();
  // Receive the values of all members; return false while one is missing.
  bool Hear();
  // Return true if all outputs of all members can be accessed; valid after Hear.
  bool all_reached() const { return all_reached_; }
  // Return the address of output i of `member`; number() returns the value that the member posted.
  std::byte* at(size_t member, size_t i) const { return arenas_[member] + told_[member][i]; }
  int64_t number(size_t member, size_t i) const { return told_[member][i]; }

 private:
  Lane* lane_;
  std::vector<std::byte*> arenas_;
  std::vector<std::vector<int64_t>> told_;  // posted values, by member
  bool all_reached_ = true;
};

// Writer of sources[j] to targets[j], of equal size, for every member j including this one. At the end all members
// synchronise.
class Push {
 public:
  Push(Lane* lane, std::vector<Flat> sources, std::vector<Flat> targets);
  Machine::Step Advance();

 private:
  Lane* lane_;
  std::vector<Flat> sources_, targets_;
  size_t done_ = 0, longest_ = 0;
  bool posted_ = false;
};

class PushAllgather : public Machine {
 public:
  // `in` and `outs` are those of Allgather. rows[i] is this member's range in every member's output of tensor i.
  PushAllgather(Lane* lane, Flat in, std::vector<Flat> outs, Places places, std::vector<Range> rows);
  Step Advance() override;
  bool single_copy() const override { return push_ != nullptr; }

 private:
  void Choose();

  Lane* lane_;
  Flat in_;
  std::vector<Flat> outs_;
  Places places_;
  std::vector<Range> rows_;
  bool told_ = false;
  std::unique_ptr<Push> push_;
  std::unique_ptr<Machine> staged_;
};

}  // namespace hvd
