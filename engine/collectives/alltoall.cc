// SPDX-License-Identifier: Apache-2.0
#include "collectives/alltoall.h"

#include <algorithm>
#include <cstring>

namespace hvd {

Alltoall::Alltoall(Lane* lane, const std::byte* in, std::vector<int64_t> splits, size_t row_bytes, int64_t largest,
                   std::function<std::byte*(const std::vector<int64_t>&)> allocate, std::vector<std::byte*> arenas)
    : lane_(lane),
      in_(in),
      splits_(std::move(splits)),
      received_(splits_.size(), 0),
      send_begin_(splits_.size(), 0),
      receive_begin_(splits_.size(), 0),
      row_bytes_(row_bytes),
      allocate_(std::move(allocate)),
      arenas_(std::move(arenas)),
      may_push_(!arenas_.empty()),
      rounds_((static_cast<size_t>(largest) * row_bytes + lane->piece_bytes() - 1) / lane->piece_bytes()),
      collector_(lane->members()) {
  for (size_t j = 1; j < splits_.size(); ++j) {
    send_begin_[j] = send_begin_[j - 1] + static_cast<size_t>(splits_[j - 1]) * row_bytes_;
  }
}

// Return the piece size for a member. Members reached through shared memory share a slot. Data for a socket is sent
// from the input and received into the output, so its pieces may be as long as a slot, which takes fewer packets and
// rounds.
size_t Alltoall::PieceBytes(int member) const {
  const size_t piece = lane_->piece_bytes();
  return lane_->in_memory(member) ? piece : std::max(piece, InPackets(lane_->slot_bytes()));
}

size_t Alltoall::PieceLength(int member, int64_t rows, uint64_t round) const {
  const size_t piece = PieceBytes(member), begin = round * piece, size = static_cast<size_t>(rows) * row_bytes_;
  return begin < size ? std::min(piece, size - begin) : 0;
}

bool Alltoall::TellSplits() {
  if (!lane_->CanPost()) return false;
  std::vector<size_t> lengths(splits_.size(), sizeof(int64_t));
  for (size_t j = 0; j < splits_.size(); ++j) {
    std::memcpy(lane_->Slot() + j * lane_->piece_bytes(), &splits_[j], sizeof(int64_t));
  }
  lane_->PostScatter(lengths.data());
  told_ = true;
  return true;
}

bool Alltoall::HearSplits() {
  const int me = lane_->me();
  received_[me] = splits_[me];
  std::vector<const std::byte*> rows;
  if (!FetchAll(*lane_, Lane::Layout::kScatter, sizeof(int64_t), &rows)) return false;
  for (int j = 0; j < lane_->members(); ++j) {
    if (j != me) std::memcpy(&received_[j], rows[j], sizeof(int64_t));
  }
  lane_->Release();
  for (size_t j = 1; j < received_.size(); ++j) {
    receive_begin_[j] = receive_begin_[j - 1] + static_cast<size_t>(received_[j - 1]) * row_bytes_;
  }
  out_ = allocate_(received_);
  arenas_.empty() ? CopyOwn() : MakePlaces();
  heard_ = true;
  return true;
}

void Alltoall::CopyOwn() {
  const auto me = static_cast<size_t>(lane_->me());
  const size_t own = static_cast<size_t>(splits_[me]) * row_bytes_;
  if (own && out_) std::memcpy(out_ + receive_begin_[me], in_ + send_begin_[me], own);
}

// Prepare the offsets to post, including the offset of each member's rows, because the others do not know where their
// rows belong in this member's output.
void Alltoall::MakePlaces() {
  const Places::Span output = {out_, receive_begin_.back() + static_cast<size_t>(received_.back()) * row_bytes_};
  const Places::Span input = {in_, send_begin_.back() + static_cast<size_t>(splits_.back()) * row_bytes_};
  std::vector<int64_t> own = {Places::In(arenas_[static_cast<size_t>(lane_->me())], output, input)};
  own.insert(own.end(), receive_begin_.begin(), receive_begin_.end());
  places_ = std::make_unique<Places>(lane_, std::move(arenas_), std::move(own));
}

// Decide whether rows are written directly; return false while a member's offsets are missing.
bool Alltoall::Choose() {
  if (!told_places_ && !(told_places_ = places_->Tell())) return false;
  if (!places_->Hear()) return false;
  if (places_->all_reached()) {
    std::vector<Flat> sources(splits_.size()), targets(splits_.size());
    for (size_t j = 0; j < splits_.size(); ++j) {
      const size_t bytes = static_cast<size_t>(splits_[j]) * row_bytes_;
      sources[j].Add(const_cast<std::byte*>(in_ + send_begin_[j]), bytes);
      targets[j].Add(places_->at(j, 0) + places_->number(j, 1 + static_cast<size_t>(lane_->me())), bytes);
    }
    push_ = std::make_unique<Push>(lane_, std::move(sources), std::move(targets));
  } else {
    CopyOwn();
  }
  places_.reset();
  return true;
}

bool Alltoall::Show() {
  if (shown_ == rounds_ || !lane_->CanPost()) return false;
  std::vector<size_t> lengths(splits_.size(), 0);
  std::vector<const std::byte*> pieces(splits_.size(), nullptr);
  for (int j = 0; j < lane_->members(); ++j) {
    if (j == lane_->me()) continue;
    lengths[j] = PieceLength(j, splits_[j], shown_);
    if (lengths[j] == 0) continue;
    pieces[j] = in_ + send_begin_[j] + shown_ * PieceBytes(j);
    if (!lane_->in_memory(j)) continue;
    std::memcpy(lane_->Slot() + static_cast<size_t>(j) * lane_->piece_bytes(), pieces[j], lengths[j]);
  }
  lane_->PostScatterFrom(pieces.data(), lengths.data());
  ++shown_;
  return true;
}

bool Alltoall::Collect() {
  if (collected_ == rounds_) return false;
  auto target = [&](int j) {
    const size_t length = PieceLength(j, received_[j], collected_);
    std::byte* to = length ? out_ + receive_begin_[j] + collected_ * PieceBytes(j) : nullptr;
    return std::make_pair(length, to);
  };
  Step step = collector_.Run(*lane_, Lane::Layout::kScatter, target, [&](int j, const std::byte* piece) {
    const auto [length, to] = target(j);
    if (length && piece != to) std::memcpy(to, piece, length);
  });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step Alltoall::Advance() {
  bool moved = false;
  if (!told_ && !(moved = TellSplits())) return Step::kStuck;
  // offsets can be posted now, because what this member sends does not depend on what it receives
  if (!may_push_) moved |= Show();
  if (!heard_) {
    if (!HearSplits()) return moved ? Step::kMoved : Step::kStuck;
    moved = true;
  }
  if (places_ && !Choose()) return moved ? Step::kMoved : Step::kStuck;
  if (push_) return push_->Advance();
  if (may_push_) moved |= Show();
  moved |= Collect();
  if (shown_ == rounds_ && collected_ == rounds_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
