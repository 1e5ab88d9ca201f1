// SPDX-License-Identifier: Apache-2.0
#include "collectives/allgather.h"

#include <algorithm>

namespace hvd {

Allgather::Allgather(Lane* lane, Flat in, std::vector<Flat> outs, size_t chunk_bytes)
    : lane_(lane),
      in_(std::move(in)),
      outs_(std::move(outs)),
      chunk_bytes_(std::min(chunk_bytes, lane->slot_bytes())),
      collector_(lane->members()) {
  for (int j = 0; j < lane_->members(); ++j) {
    rounds_ = std::max<uint64_t>(rounds_, (BytesOf(j) + chunk_bytes_ - 1) / chunk_bytes_);
  }
}

size_t Allgather::ChunkLength(int member, uint64_t chunk) const {
  const size_t begin = chunk * chunk_bytes_, size = BytesOf(member);
  return begin < size ? std::min(chunk_bytes_, size - begin) : 0;
}

// Copy this member's contribution to its output, unless it is in place already.
void Allgather::Keep(const std::byte* chunk, size_t begin, size_t length) {
  const Flat& own = outs_[lane_->me()];
  if (own.size()) Scatter(chunk, own, begin, length);
}

bool Allgather::Show() {
  if (shown_ == rounds_) return false;
  const size_t length = ChunkLength(lane_->me(), shown_);
  if (length == 0) {  // this member has posted all its data, but others have more
    lane_->PostNothing(rounds_ - shown_);
    shown_ = rounds_;
    return true;
  }
  const size_t begin = shown_ * chunk_bytes_;
  if (begin + length > ready_ || !lane_->CanPost()) return false;
  const std::byte* lies = lane_->by_sockets() ? in_.Contiguous(begin, length) : nullptr;
  if (lies) {
    Keep(lies, begin, length);
    lane_->PostMulticastFrom(lies, length);
    ++shown_;
    return true;
  }
  std::byte* slot = lane_->Slot();
  Gather(in_, begin, length, DType::kUInt8, 1.0, slot);
  Keep(slot, begin, length);
  lane_->PostMulticast(length);
  ++shown_;
  return true;
}

bool Allgather::Collect() {
  if (collected_ == rounds_) return false;
  const size_t begin = collected_ * chunk_bytes_;
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
