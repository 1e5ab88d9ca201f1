// SPDX-License-Identifier: Apache-2.0
#include "collectives/broadcast.h"

#include <algorithm>

namespace hvd {

Broadcast::Broadcast(Lane* lane, int root, Flat in, Flat out)
    : lane_(lane),
      is_root_(root == lane->me()),
      root_(root),
      in_(std::move(in)),
      out_(std::move(out)),
      chunks_((out_.size() + lane->slot_bytes() - 1) / lane->slot_bytes()) {}

size_t Broadcast::ChunkLength(uint64_t chunk) const {
  return std::min(lane_->slot_bytes(), out_.size() - chunk * lane_->slot_bytes());
}

bool Broadcast::ShowNext() {
  if (!lane_->CanPost()) return false;
  const size_t begin = done_ * lane_->slot_bytes(), length = ChunkLength(done_);
  std::byte* slot = lane_->Slot();
  Gather(in_, begin, length, DType::kUInt8, 1.0, slot);
  lane_->PostMulticast(length);
  lane_->Release();
  in_.ForRange(begin, length, [&](std::byte* data, size_t bytes, size_t offset, bool) {
    Scatter(data, out_, begin + offset, bytes);  // copies nothing where the root works in place
  });
  return true;
}

bool Broadcast::CopyNext() {
  const size_t begin = done_ * lane_->slot_bytes(), length = ChunkLength(done_);
  const std::byte* chunk = lane_->Fetch(root_, Lane::Layout::kMulticast, length, out_.Contiguous(begin, length));
  if (!chunk) return false;
  Scatter(chunk, out_, begin, length);
  lane_->Release();
  return true;
}

Machine::Step Broadcast::Advance() {
  if (!begun_ && !is_root_) lane_->PostNothing(chunks_);  // not before: the lane belongs to the machine before us
  begun_ = true;
  if (done_ == chunks_) return Step::kDone;
  if (!(is_root_ ? ShowNext() : CopyNext())) return Step::kStuck;
  return ++done_ == chunks_ ? Step::kDone : Step::kMoved;
}

}  // namespace hvd
