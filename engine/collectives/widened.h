// SPDX-License-Identifier: Apache-2.0
// Averages of integers under 64 bits by machines whose partial sums travel: the tensors are widened once, the other
// machine sums the wide copies, and the result is divided and narrowed on its way to where it belongs. The callers'
// inputs are only read, and outputs are written only at the end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

class WidenedAverage : public Machine {
 public:
  // Makes the machine that sums the wide copies; `sum` is its reduction.
  using Make = std::function<std::unique_ptr<Machine>(std::vector<Flat> ins, Flat out, const Reduction& sum)>;
  enum class Result { kReplacesInput, kApart };

  // `ins` and `out` are what the other machine would get. kReplacesInput: there is one input, of the same size as the
  // output, and the other machine may use the same memory for both. Throws std::bad_alloc.
  WidenedAverage(const std::vector<Flat>& ins, Flat out, const Reduction& reduction, Result result, const Make& make);
  Step Advance() override;

 private:
  std::byte* WideAt(size_t offset) { return wide_.get() + offset * times_; }
  void WidenBlock();
  void NarrowBlock();

  Flat in_, out_;
  Reduction reduction_;
  size_t times_;         // how many times larger a sum is than an element
  size_t result_begin_;  // where the result begins in the wide memory, in bytes of narrow elements
  std::unique_ptr<std::byte[]> wide_;
  std::vector<std::byte> block_;  // of narrow elements
  size_t widened_ = 0, narrowed_ = 0;
  bool summed_ = false;
  std::unique_ptr<Machine> sum_;
};

}  // namespace hvd
