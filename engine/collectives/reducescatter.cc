// SPDX-License-Identifier: Apache-2.0
#include "collectives/reducescatter.h"

#include <algorithm>

#include "collectives/allreduce.h"

namespace hvd {

Reducescatter::Reducescatter(Lane* lane, std::vector<Flat> ins, Flat out, Reduction reduction)
    : lane_(lane), ins_(std::move(ins)), out_(std::move(out)), reduction_(reduction) {
  const size_t piece = lane_->piece_bytes();
  for (const Flat& in : ins_) rounds_ = std::max<uint64_t>(rounds_, (in.size() + piece - 1) / piece);
}

size_t Reducescatter::PieceLength(int member, uint64_t round) const {
  const size_t begin = round * lane_->piece_bytes(), size = ins_[member].size();
  return begin < size ? std::min(lane_->piece_bytes(), size - begin) : 0;
}

bool Reducescatter::Publish() {
  if (published_ == rounds_ || !lane_->CanPost()) return false;
  const size_t begin = published_ * lane_->piece_bytes();
  std::vector<size_t> lengths(lane_->members());
  for (int j = 0; j < lane_->members(); ++j) {
    lengths[j] = PieceLength(j, published_);
    if (j == lane_->me()) continue;
    std::byte* to = lane_->Slot() + static_cast<size_t>(j) * lane_->piece_bytes();
    Gather(ins_[j], begin, lengths[j], reduction_.dtype, reduction_.prescale, to);
  }
  lane_->PostScatter(lengths.data());
  ++published_;
  return true;
}

bool Reducescatter::ReduceOwn() {
  if (reduced_ == rounds_) return false;
  const int me = lane_->me();
  const size_t begin = reduced_ * lane_->piece_bytes(), length = PieceLength(me, reduced_);
  if (!FetchAll(*lane_, Lane::Layout::kScatter, length, &sources_)) return false;
  ReducePiece(reduction_, ins_[me], &out_, begin, length, sources_, me, &scaled_, nullptr);
  lane_->Release();
  ++reduced_;
  return true;
}

Machine::Step Reducescatter::Advance() {
  bool moved = ReduceOwn();
  moved |= Publish();
  if (reduced_ == rounds_ && published_ == rounds_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
