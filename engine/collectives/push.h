// SPDX-License-Identifier: Apache-2.0
// Copying once instead of twice: where the outputs of all members lie in memory which all reach, each member writes
// what it sends straight into them. The members tell each other the places of their outputs, write, and meet when all
// is done; nothing is staged. Where one output lies elsewhere all of them stage as usual.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// The members' outputs, announced to all: at one index of the lane each posts as many numbers.
class Places {
 public:
  static constexpr int64_t kElsewhere = -1;

  // arenas[j]: where member j's arena lies here. own[i]: an offset in our arena, or kElsewhere.
  Places(Lane* lane, std::vector<std::byte*> arenas, std::vector<int64_t> own);
  static bool Fit(const Lane& lane, size_t count) { return count * sizeof(int64_t) <= lane.slot_bytes(); }
  // The offset of an output in `arena`, or kElsewhere; also where others would write over the input. An output of size
  // 0 is anywhere.
  struct Span {
    const std::byte* data;
    size_t bytes;
  };
  static int64_t In(const std::byte* arena, Span output, Span input);

  bool Tell();
  // False while a member has not announced its own.
  bool Hear();
  // After Hear: whether every output of every member is reached.
  bool all_reached() const { return all_reached_; }
  // The place of a member's output i here, or another number that it announced.
  std::byte* at(size_t member, size_t i) const { return arenas_[member] + told_[member][i]; }
  int64_t number(size_t member, size_t i) const { return told_[member][i]; }

 private:
  Lane* lane_;
  std::vector<std::byte*> arenas_;
  std::vector<std::vector<int64_t>> told_;  // by member
  bool all_reached_ = true;
};

// Writes sources[j] to targets[j], of the same size, for every member j, ourselves included; then all members meet.
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
  // `in` and `outs` as for Allgather. rows[i]: which bytes of everybody's output of tensor i are ours.
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
