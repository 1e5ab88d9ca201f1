// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical.h"

#include <algorithm>
#include <cstring>

#include "collectives/allreduce.h"
#include "collectives/kernels.h"

namespace hvd {
namespace {

// Of what one member owns, every host's share must fit a piece between hosts, and should fill its packets.
size_t PieceBytes(const Exchange& inside, const Exchange& across) {
  return std::min(InPackets(inside.there->piece_bytes()),
                  across.there->piece_bytes() * static_cast<size_t>(across.members()));
}

}  // namespace

HierarchicalAllreduce::HierarchicalAllreduce(Exchange* inside, Exchange* across, Flat in, Flat out, Reduction reduction)
    : inside_(inside),
      across_(across),
      in_(std::move(in)),
      out_(std::move(out)),
      local_{reduction.dtype, reduction.op, reduction.prescale, 1.0, 1},
      cross_{reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor},
      chunk_bytes_(PieceBytes(*inside, *across) * static_cast<size_t>(inside->members())),
      chunks_((in_.size() + chunk_bytes_ - 1) / chunk_bytes_),
      partials_(kInFlight * inside->there->piece_bytes()),
      collector_inside_(inside->members()),
      collector_across_(across->members()) {}

Range HierarchicalAllreduce::Piece(uint64_t chunk, int member) const {
  const size_t begin = chunk * chunk_bytes_;
  return ShareOf({begin, std::min(chunk_bytes_, in_.size() - begin)}, inside_->members(), member);
}

Range HierarchicalAllreduce::Share(uint64_t chunk, int host) const {
  return ShareOf({0, Piece(chunk, inside_->me()).length}, across_->members(), host);
}

bool HierarchicalAllreduce::Publish() {
  Lane& lane = *inside_->there;
  if (published_ == chunks_ || !lane.CanPost()) return false;
  PostPieces(lane, in_, local_.dtype, local_.prescale, &outgoing_, [this](int j) { return Piece(published_, j); });
  ++published_;
  return true;
}

bool HierarchicalAllreduce::ReduceInside() {
  Lane& lane = *inside_->there;
  if (reduced_ == published_ || reduced_ - shown_ == kInFlight) return false;
  const Range piece = Piece(reduced_, lane.me());
  if (!FetchAll(lane, Lane::Layout::kScatter, piece.length, &sources_)) return false;
  ReducePiece(local_, in_, nullptr, piece.begin, piece.length, sources_, lane.me(), &scaled_, Partial(reduced_));
  lane.Release();
  ++reduced_;
  return true;
}

bool HierarchicalAllreduce::SendAcross() {
  Lane& lane = *across_->there;
  if (sent_ == reduced_ || !lane.CanPost()) return false;
  std::vector<size_t> lengths(lane.members());
  for (int h = 0; h < lane.members(); ++h) {
    const Range share = Share(sent_, h);
    lengths[h] = share.length;
    if (h == lane.me()) continue;
    std::memcpy(lane.Slot() + static_cast<size_t>(h) * lane.piece_bytes(), Partial(sent_) + share.begin, share.length);
  }
  lane.PostScatter(lengths.data());
  ++sent_;
  return true;
}

bool HierarchicalAllreduce::ReduceAcross() {
  Lane& there = *across_->there;
  Lane& back = *across_->back;
  if (combined_ == sent_ || !back.CanPost()) return false;
  const Range share = Share(combined_, there.me());
  std::byte* own = Partial(combined_) + share.begin;
  if (!FetchAll(there, Lane::Layout::kScatter, share.length, &sources_)) return false;
  sources_[there.me()] = own;
  std::vector<const void*> sources(sources_.begin(), sources_.end());
  Combine(cross_, own, back.Slot(), sources.data(), there.members(), share.length / SizeOf(cross_.dtype));
  there.Release();
  back.PostMulticast(share.length);
  ++combined_;
  return true;
}

bool HierarchicalAllreduce::CollectAcross() {
  if (gathered_ == combined_) return false;
  auto target = [this](int h) {
    const Range share = Share(gathered_, h);
    return std::make_pair(share.length, Partial(gathered_) + share.begin);
  };
  Step step =
      collector_across_.Run(*across_->back, Lane::Layout::kMulticast, target, [&](int h, const std::byte* result) {
        const auto [length, to] = target(h);
        if (length && result != to) std::memcpy(to, result, length);
      });
  if (step == Step::kDone) ++gathered_;
  return step != Step::kStuck;
}

bool HierarchicalAllreduce::ShowResult() {
  Lane& lane = *inside_->back;
  if (shown_ == gathered_ || !lane.CanPost()) return false;
  const Range piece = Piece(shown_, lane.me());
  std::memcpy(lane.Slot(), Partial(shown_), piece.length);
  lane.PostMulticast(piece.length);
  Scatter(Partial(shown_), out_, piece.begin, piece.length, local_.dtype);
  ++shown_;
  return true;
}

bool HierarchicalAllreduce::CollectInside() {
  if (collected_ == shown_) return false;
  const Step step = CollectPieces(collector_inside_, *inside_->back, Lane::Layout::kMulticast, out_, local_.dtype,
                                  [this](int j) { return Piece(collected_, j); });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step HierarchicalAllreduce::Advance() {
  bool moved = CollectInside();
  moved |= ShowResult();
  moved |= CollectAcross();
  moved |= ReduceAcross();
  moved |= SendAcross();
  moved |= ReduceInside();
  moved |= Publish();
  if (collected_ == chunks_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
