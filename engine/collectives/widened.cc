// SPDX-License-Identifier: Apache-2.0
#include "collectives/widened.h"

#include <algorithm>
#include <utility>

#include "collectives/integer_average.h"

namespace hvd {
namespace {

// Bytes converted in one call, limited so that other state machines are not delayed.
constexpr size_t kConvertedTogether = size_t{64} << 10;

}  // namespace

WidenedAverage::WidenedAverage(const std::vector<Flat>& ins, Flat out, const Reduction& reduction, Result result,
                               const Make& make)
    : out_(std::move(out)), reduction_(reduction), times_(reduction.SumRatio()) {
  for (const Flat& in : ins) in_.Append(in, 0, in.size());
  const bool replaces = result == Result::kReplacesInput;
  result_begin_ = replaces ? 0 : in_.size();
  const size_t bytes = (result_begin_ + std::max(out_.size(), replaces ? in_.size() : 0)) * times_;
  wide_.reset(new std::byte[bytes]);
  block_.resize(std::min(kConvertedTogether, std::max(in_.size(), out_.size())));
  std::vector<Flat> wide_ins(ins.size());
  size_t begin = 0;
  for (size_t i = 0; i < ins.size(); ++i) {
    wide_ins[i].Add(WideAt(begin), ins[i].size() * times_);
    begin += ins[i].size();
  }
  Flat wide_out;
  wide_out.Add(WideAt(result_begin_), out_.size() * times_);
  sum_ = make(std::move(wide_ins), std::move(wide_out), Reduction{reduction.SumDType(), ReduceOp::kSum, 1.0, 1.0, 1});
}

Machine::Step WidenedAverage::Advance() {
  if (widened_ < in_.size()) {
    WidenBlock();
    return Step::kMoved;
  }
  if (!summed_) {
    const Step step = sum_->Advance();
    if (step != Step::kDone) return step;
    summed_ = true;
  }
  if (narrowed_ == out_.size()) return Step::kDone;
  NarrowBlock();
  return narrowed_ == out_.size() ? Step::kDone : Step::kMoved;
}

void WidenedAverage::WidenBlock() {
  const size_t bytes = std::min(kConvertedTogether, in_.size() - widened_);
  Gather(in_, widened_, bytes, reduction_.dtype, reduction_.prescale, block_.data());
  WidenIntegers(reduction_, WideAt(widened_), block_.data(), bytes / SizeOf(reduction_.dtype));
  widened_ += bytes;
}

void WidenedAverage::NarrowBlock() {
  const size_t bytes = std::min(kConvertedTogether, out_.size() - narrowed_);
  NarrowAverages(reduction_, block_.data(), WideAt(result_begin_ + narrowed_), bytes / SizeOf(reduction_.dtype));
  Scatter(block_.data(), out_, narrowed_, bytes, reduction_.dtype);
  narrowed_ += bytes;
}

}  // namespace hvd
