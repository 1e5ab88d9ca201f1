// SPDX-License-Identifier: Apache-2.0
#include "collectives/allgather.h"

#include <algorithm>

namespace hvd {

Allgather::Allgather(Lane* lane, Flat in, std::vector<Flat> outs)
    : lane_(lane), in_(std::move(in)), outs_(std::move(outs)), collector_(lane->members()) {
  for (int j = 0; j < lane_->members(); ++j) rounds_ = std::max(rounds_, ChunksOf(j));
}

uint64_t Allgather::ChunksOf(int member) const {
  return (outs_[member].size() + lane_->slot_bytes() - 1) / lane_->slot_bytes();
}

size_t Allgather::ChunkLength(int member, uint64_t chunk) const {
  const size_t begin = chunk * lane_->slot_bytes(), size = outs_[member].size();
  return begin < size ? std::min(lane_->slot_bytes(), size - begin) : 0;
}

bool Allgather::Show() {
  if (shown_ == rounds_) return false;
  const size_t length = ChunkLength(lane_->me(), shown_);
  if (length == 0) {  // all of our own is out; others have more
    lane_->PostNothing(rounds_ - shown_);
    shown_ = rounds_;
    return true;
  }
  if (!lane_->CanPost()) return false;
  const size_t begin = shown_ * lane_->slot_bytes();
  const std::byte* lies = lane_->by_sockets() ? in_.Contiguous(begin, length) : nullptr;
  if (lies) {
    Scatter(lies, outs_[lane_->me()], begin, length);
    lane_->PostMulticastFrom(lies, length);
    ++shown_;
    return true;
  }
  std::byte* slot = lane_->Slot();
  Gather(in_, begin, length, DType::kUInt8, 1.0, slot);
  Scatter(slot, outs_[lane_->me()], begin, length);
  lane_->PostMulticast(length);
  ++shown_;
  return true;
}

bool Allgather::Collect() {
  if (collected_ == rounds_) return false;
  const size_t begin = collected_ * lane_->slot_bytes();
  Step step = collector_.Run(
      *lane_, Lane::Layout::kMulticast,
      [&](int j) {
        const size_t length = ChunkLength(j, collected_);
        return std::make_pair(length, outs_[j].Contiguous(begin, length));
      },
      [&](int j, const std::byte* chunk) { Scatter(chunk, outs_[j], begin, ChunkLength(j, collected_)); });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step Allgather::Advance() {
  bool moved = Show();
  moved |= Collect();
  if (shown_ == rounds_ && collected_ == rounds_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
