// SPDX-License-Identifier: Apache-2.0
// Adasum: gradients of two ranks are added where they are orthogonal and averaged where they are parallel, tensor by
// tensor, along a fixed binary tree over the ranks (an odd one out moves up a level). Each rank owns a slice of every
// rank's vector, so the bytes are those of an allreduce; each level adds one exchange of dot products.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Adasum : public Machine {
 public:
  // `tensors`: where each tensor lies in the batch; the dot products are taken over one tensor at a time.
  Adasum(Exchange* exchange, Flat in, Flat out, Reduction reduction, std::vector<Range> tensors);
  Step Advance() override;

 private:
  enum class Phase { kScatter, kCombine, kGather, kDone };

  Range SliceOf(int member) const { return ShareOf({0, in_.size()}, exchange_->members(), member); }
  Range PieceOf(int member, uint64_t round) const;  // of the batch
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
  std::vector<Range> tensors_;  // the part of each tensor that lies in our slice, relative to the slice
  std::vector<size_t> tensor_of_;
  size_t tensor_count_;
  Phase phase_ = Phase::kScatter;
  size_t slice_bytes_;  // of the largest slice
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
