// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical.h"

#include <algorithm>
#include <cstring>

#include "collectives/allreduce.h"
#include "collectives/kernels.h"

namespace hvd {
namespace {

// Return the size of the piece that one member owns. With direct exchange, each host's share of it must fit into a
// piece between hosts and should fill whole packets.
size_t PieceBytes(const Exchange& inside, const Exchange& across, HostAlgorithm algorithm) {
  const size_t most = InPackets(inside.there->piece_bytes());
  if (algorithm != HostAlgorithm::kDirect) return most;
  return std::min(most, across.there->piece_bytes() * static_cast<size_t>(across.members()));
}

}  // namespace

HierarchicalAllreduce::HierarchicalAllreduce(Exchange* inside, Exchange* across, HostAlgorithm algorithm, Flat in,
                                             Flat out, const Reduction& reduction)
    : inside_(inside),
      in_(std::move(in)),
      out_(std::move(out)),
      local_{reduction.dtype, reduction.op, reduction.prescale, 1.0, 1},
      piece_bytes_(PieceBytes(*inside, *across, algorithm)),
      chunk_bytes_(piece_bytes_ * static_cast<size_t>(inside->members())),
      chunks_((in_.size() + chunk_bytes_ - 1) / chunk_bytes_),
      in_flight_(std::min(chunks_, BlocksUnderWay(algorithm, across->members(), piece_bytes_))),
      partials_(in_flight_ * piece_bytes_),
      collector_(inside->members()) {
  BetweenHosts::Run run;
  for (uint64_t chunk = 0; chunk < in_flight_; ++chunk) {
    run.in.Add(Partial(chunk), piece_bytes_);
    run.out.Add(Partial(chunk), piece_bytes_);
  }
  run.reduction = {reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor};
  run.blocks = chunks_;
  run.bytes = in_.size() / static_cast<size_t>(inside->members());
  across_ = MakeBetweenHosts(algorithm, across, std::move(run), piece_bytes_);
}

Range HierarchicalAllreduce::Piece(uint64_t chunk, int member) const {
  const size_t begin = chunk * chunk_bytes_;
  return ShareOf({begin, std::min(chunk_bytes_, in_.size() - begin)}, inside_->members(), member);
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
  if (reduced_ == published_ || reduced_ - shown_ == in_flight_) return false;
  const Range piece = Piece(reduced_, lane.me());
  if (!FetchAll(lane, Lane::Layout::kScatter, piece.length, &sources_)) return false;
  ReducePiece(local_, in_, nullptr, piece.begin, piece.length, sources_, lane.me(), &scaled_, Partial(reduced_));
  lane.Release();
  across_->Add({Place(reduced_), piece.length});
  ++reduced_;
  return true;
}

bool HierarchicalAllreduce::ShowResult() {
  Lane& lane = *inside_->back;
  if (shown_ == across_->finished() || !lane.CanPost()) return false;
  const Range piece = Piece(shown_, lane.me());
  std::memcpy(lane.Slot(), Partial(shown_), piece.length);
  lane.PostMulticast(piece.length);
  Scatter(Partial(shown_), out_, piece.begin, piece.length, local_.dtype);
  ++shown_;
  return true;
}

bool HierarchicalAllreduce::CollectInside() {
  if (collected_ == shown_) return false;
  const Step step = CollectPieces(collector_, *inside_->back, Lane::Layout::kMulticast, out_, local_.dtype,
                                  [this](int j) { return Piece(collected_, j); });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step HierarchicalAllreduce::Advance() {
  bool moved = CollectInside();
  moved |= ShowResult();
  moved |= across_->Advance();
  moved |= ReduceInside();
  moved |= Publish();
  if (collected_ == chunks_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
