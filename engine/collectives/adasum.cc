// SPDX-License-Identifier: Apache-2.0
#include "collectives/adasum.h"

#include <algorithm>
#include <cstring>

#include "collectives/kernels.h"

namespace hvd {

Adasum::Adasum(Exchange* exchange, Flat in, Flat out, Reduction reduction, std::vector<Range> tensors)
    : exchange_(exchange),
      in_(std::move(in)),
      out_(std::move(out)),
      reduction_(reduction),
      tensor_count_(tensors.size()),
      slice_bytes_(SliceOf(0).length),
      vectors_(slice_bytes_ * static_cast<size_t>(exchange->members())),
      rounds_((slice_bytes_ + exchange->there->piece_bytes() - 1) / exchange->there->piece_bytes()),
      collector_(exchange->members()) {
  const Range slice = SliceOf(exchange_->me());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const size_t low = std::max(tensors[t].begin, slice.begin);
    const size_t high = std::min(tensors[t].begin + tensors[t].length, slice.begin + slice.length);
    if (low >= high) continue;
    tensors_.push_back({low - slice.begin, high - low});
    tensor_of_.push_back(t);
  }
  for (int j = 0; j < exchange_->members(); ++j) alive_.push_back(j);
}

Range Adasum::PieceOf(int member, uint64_t round) const {
  const Range slice = SliceOf(member);
  const size_t low = std::min(slice.length, static_cast<size_t>(round) * exchange_->there->piece_bytes());
  return {slice.begin + low, std::min(exchange_->there->piece_bytes(), slice.length - low)};
}

bool Adasum::ScatterSlices() {
  Lane& lane = *exchange_->there;
  if (sent_ == rounds_ || !lane.CanPost()) return false;
  std::vector<size_t> lengths(lane.members());
  for (int j = 0; j < lane.members(); ++j) {
    const Range piece = PieceOf(j, sent_);
    lengths[j] = piece.length;
    std::byte* to = lane.Slot() + static_cast<size_t>(j) * lane.piece_bytes();
    if (j == lane.me()) to = Vector(j) + piece.begin - SliceOf(j).begin;
    Gather(in_, piece.begin, piece.length, reduction_.dtype, reduction_.prescale, to);
  }
  lane.PostScatter(lengths.data());
  ++sent_;
  return true;
}

bool Adasum::ReceiveSlices() {
  if (received_ == rounds_) return false;
  const Range piece = PieceOf(exchange_->me(), received_);
  const size_t offset = piece.begin - SliceOf(exchange_->me()).begin;
  Step step = collector_.Run(
      *exchange_->there, Lane::Layout::kScatter,
      [&](int j) { return std::make_pair(piece.length, Vector(j) + offset); },
      [&](int j, const std::byte* bytes) {
        if (piece.length && bytes != Vector(j) + offset) std::memcpy(Vector(j) + offset, bytes, piece.length);
      });
  if (step == Step::kDone) ++received_;
  return step != Step::kStuck;
}

// Compute three scalars for each pair and tensor, over this member's slice only.
void Adasum::ComputeDots() {
  const size_t pairs = alive_.size() / 2, element = SizeOf(reduction_.dtype);
  dots_.assign(pairs * tensor_count_ * 3, 0.0);
  sums_.assign(dots_.size(), 0.0);
  for (size_t p = 0; p < pairs; ++p) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Range part = tensors_[i];
      DotProducts(reduction_.dtype, Vector(alive_[2 * p]) + part.begin, Vector(alive_[2 * p + 1]) + part.begin,
                  part.length / element, &dots_[(p * tensor_count_ + tensor_of_[i]) * 3]);
    }
  }
  dots_shown_ = dots_heard_ = 0;
  dots_ready_ = true;
}

bool Adasum::ShowDots() {
  Lane& lane = *exchange_->there;
  const size_t bytes = dots_.size() * sizeof(double);
  if (dots_shown_ == bytes || !lane.CanPost()) return false;
  const size_t length = std::min(bytes - dots_shown_, lane.slot_bytes());
  std::memcpy(lane.Slot(), reinterpret_cast<std::byte*>(dots_.data()) + dots_shown_, length);
  lane.PostMulticast(length);
  dots_shown_ += length;
  return true;
}

bool Adasum::HearDots() {
  Lane& lane = *exchange_->there;
  const size_t bytes = dots_.size() * sizeof(double);
  if (dots_heard_ == dots_shown_ || dots_heard_ == bytes) return false;
  const size_t length = std::min(bytes - dots_heard_, lane.slot_bytes());
  if (!FetchAll(lane, Lane::Layout::kMulticast, length, &sources_)) return false;
  sources_[lane.me()] = reinterpret_cast<std::byte*>(dots_.data()) + dots_heard_;
  double* to = sums_.data() + dots_heard_ / sizeof(double);
  for (const std::byte* source : sources_) {  // in rank order, so that all ranks get equal bits
    for (size_t i = 0; i < length / sizeof(double); ++i) {
      double value;
      std::memcpy(&value, source + i * sizeof(double), sizeof value);
      to[i] += value;
    }
  }
  lane.Release();
  dots_heard_ += length;
  return true;
}

void Adasum::CombinePairs() {
  const size_t pairs = alive_.size() / 2, element = SizeOf(reduction_.dtype);
  std::vector<int> next;
  for (size_t p = 0; p < pairs; ++p) {
    std::byte* a = Vector(alive_[2 * p]);
    const std::byte* b = Vector(alive_[2 * p + 1]);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const double* sum = &sums_[(p * tensor_count_ + tensor_of_[i]) * 3];
      const double ca = sum[1] > 0 ? 1 - sum[0] / (2 * sum[1]) : 1;  // a zero vector has no effect, so use 1
      const double cb = sum[2] > 0 ? 1 - sum[0] / (2 * sum[2]) : 1;
      const Range part = tensors_[i];
      LinearCombination(reduction_.dtype, a + part.begin, a + part.begin, ca, b + part.begin, cb,
                        part.length / element);
    }
    next.push_back(alive_[2 * p]);
  }
  if (alive_.size() % 2) next.push_back(alive_.back());
  alive_ = std::move(next);
  dots_ready_ = false;
}

bool Adasum::ShowResult() {
  Lane& lane = *exchange_->back;
  if (shown_ == rounds_ || !lane.CanPost()) return false;
  const Range piece = PieceOf(lane.me(), shown_);
  const std::byte* result = Vector(alive_[0]) + piece.begin - SliceOf(lane.me()).begin;
  ScaleCopy(reduction_.dtype, lane.Slot(), result, piece.length / SizeOf(reduction_.dtype), reduction_.postscale);
  Scatter(lane.Slot(), out_, piece.begin, piece.length, reduction_.dtype);
  lane.PostMulticast(piece.length);
  ++shown_;
  return true;
}

bool Adasum::CollectResult() {
  if (collected_ == rounds_) return false;
  const Step step = CollectPieces(collector_, *exchange_->back, Lane::Layout::kMulticast, out_, reduction_.dtype,
                                  [this](int j) { return PieceOf(j, collected_); });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step Adasum::Advance() {
  bool moved = false;
  if (phase_ == Phase::kScatter) {
    moved |= ScatterSlices();
    moved |= ReceiveSlices();
    if (sent_ == rounds_ && received_ == rounds_) phase_ = Phase::kCombine;
  }
  if (phase_ == Phase::kCombine) {
    if (!dots_ready_ && alive_.size() > 1) ComputeDots();
    moved |= ShowDots();
    moved |= HearDots();
    if (dots_heard_ == dots_.size() * sizeof(double)) {
      if (alive_.size() > 1) CombinePairs();
      moved = true;
      if (alive_.size() == 1) phase_ = Phase::kGather;
    }
  }
  if (phase_ == Phase::kGather) {
    moved |= ShowResult();
    moved |= CollectResult();
    if (shown_ == rounds_ && collected_ == rounds_) phase_ = Phase::kDone;
  }
  if (phase_ == Phase::kDone) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
