// SPDX-License-Identifier: Apache-2.0
// Adasum: the gradients of two ranks are added where they are orthogonal and averaged where they are parallel, tensor
// by tensor, along a fixed binary tree over the ranks (a rank without a partner moves up a level). Each rank owns a
// slice of every rank's vector, so as many bytes travel as in an allreduce; each level adds an exchange of dot
// products.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Adasum : public Machine {
 public:
  // `tensors` are the ranges of the tensors in the batch, because dot products are computed for one tensor at a time.
  Adasum(Exchange* exchange, Flat in, Flat out, Reduction reduction, std::vector<Range> tensors);
  Step Advance() override;

 private:
  enum class Phase { kScatter, kCombine, kGather, kDone };

  Range SliceOf(int member) const { return ShareOf({0, in_.size()}, exchange_->members(), member); }
  Range PieceOf(int member, uint64_t round) const;  // range of the batch that a member owns in this round
  std::byte* Vector(int member) { return vectors_.data() + static_cast<size_t>(member) * slice_bytes_; }

  bool ScatterSlices();
  bool ReceiveSlices();
  void ComputeDots();
  bool ShowDots();
  bool HearDots();
  void CombinePairs();
  bool ShowResult();
  bool CollectResult();

  Exchange* exchange_;
  Flat in_, out_;
  Reduction reduction_;
  std::vector<Range> tensors_;  // part of each tensor inside this member's slice, relative to the slice
  std::vector<size_t> tensor_of_;
  size_t tensor_count_;
  Phase phase_ = Phase::kScatter;
  size_t slice_bytes_;  // size of the largest slice
  std::vector<std::byte> vectors_;
  std::vector<int> alive_;  // members whose vectors have yet to be combined, in order
  std::vector<double> dots_, sums_;
  uint64_t rounds_, sent_ = 0, received_ = 0, shown_ = 0, collected_ = 0;
  size_t dots_shown_ = 0, dots_heard_ = 0;  // bytes
  bool dots_ready_ = false;
  std::vector<const std::byte*> sources_;
  Collector collector_;
};

}  // namespace hvd
