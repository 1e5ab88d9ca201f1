// SPDX-License-Identifier: Apache-2.0
// Averages of integers under 64 bits with state machines that exchange partial sums. The tensors are widened once,
// another state machine sums the wide copies, and the result is divided and narrowed on its way to the outputs. Inputs
// are only read, and outputs are written only at the end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

class WidenedAverage : public Machine {
 public:
  // Create the state machine that sums the wide copies; `sum` is its reduction.
  using Make = std::function<std::unique_ptr<Machine>(std::vector<Flat> ins, Flat out, const Reduction& sum)>;
  enum class Result { kReplacesInput, kApart };

  // `ins` and `out` are what a state machine without widening would get. kReplacesInput means that there is one input
  // as large as the output, and that the state machine that sums may use one buffer for both. Throws std::bad_alloc.
  WidenedAverage(const std::vector<Flat>& ins, Flat out, const Reduction& reduction, Result result, const Make& make);
  Step Advance() override;

 private:
  std::byte* WideAt(size_t offset) { return wide_.get() + offset * times_; }
  void WidenBlock();
  void NarrowBlock();

  Flat in_, out_;
  Reduction reduction_;
  size_t times_;         // how many times larger a sum is than an element
  size_t result_begin_;  // offset of the result in the wide buffer, counted in bytes of narrow elements
  std::unique_ptr<std::byte[]> wide_;
  std::vector<std::byte> block_;  // buffer of narrow elements
  size_t widened_ = 0, narrowed_ = 0;
  bool summed_ = false;
  std::unique_ptr<Machine> sum_;
};

}  // namespace hvd
