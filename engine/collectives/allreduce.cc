// SPDX-License-Identifier: Apache-2.0
#include "collectives/allreduce.h"

#include <algorithm>

#include "collectives/kernels.h"

namespace hvd {

void ReducePiece(const Reduction& reduction, const Flat& in, const Flat* out, size_t begin, size_t length,
                 const std::vector<const std::byte*>& sources, int me, std::vector<std::byte>* scratch,
                 std::byte* copy) {
  const size_t element = SizeOf(reduction.dtype);
  std::vector<const void*> pointers(sources.size());
  const bool one_pass = sources.size() == 2 && reduction.op == ReduceOp::kSum && reduction.prescale == 1.0;
  // `in` and `out` have equal layouts, so a stretch of one is a stretch of the other.
  in.ForRange(begin, length, [&](std::byte* own, size_t bytes, size_t offset, bool wide) {
    for (size_t j = 0; j < sources.size(); ++j) pointers[j] = sources[j] + offset;
    pointers[me] = own;
    std::byte* const shown = copy ? copy + offset : nullptr;
    if (wide && out && shown && one_pass) {
      out->ForRange(begin + offset, bytes, [&](std::byte* to, size_t, size_t, bool) {
        SumWide(reduction.dtype, shown, to, pointers.data(), me, bytes / element, reduction.postscale);
      });
      return;
    }
    if (wide || reduction.prescale != 1.0) {
      scratch->resize(std::max(scratch->size(), bytes));
      Gather(in, begin + offset, bytes, reduction.dtype, reduction.prescale, scratch->data());
      pointers[me] = scratch->data();
    }
    std::byte* const narrow = shown ? shown : scratch->data();
    std::byte* const result = out && !wide ? out->Contiguous(begin + offset, bytes) : narrow;
    Combine(reduction, result, result == shown ? nullptr : shown, pointers.data(), static_cast<int>(pointers.size()),
            bytes / element);
    if (out && wide) Scatter(result, *out, begin + offset, bytes, reduction.dtype);
  });
}

SmallAllreduce::SmallAllreduce(Lane* lane, Flat in, Flat out, Reduction reduction,
                               const std::vector<std::vector<int>>* hosts)
    : lane_(lane), in_(std::move(in)), out_(std::move(out)), reduction_(reduction), hosts_(hosts) {}

Machine::Step SmallAllreduce::Advance() {
  const size_t bytes = in_.size();
  if (!posted_) {
    if (!lane_->CanPost()) return Step::kStuck;
    own_ = lane_->Slot();
    Gather(in_, 0, bytes, reduction_.dtype, reduction_.prescale, lane_->Slot());
    lane_->PostMulticast(bytes);
    posted_ = true;
  }
  if (!FetchAll(*lane_, Lane::Layout::kMulticast, bytes, &sources_)) return Step::kStuck;
  if (hosts_) {
    ReduceByHosts();
  } else {
    ReducePiece(reduction_, in_, &out_, 0, bytes, sources_, lane_->me(), &scaled_, nullptr);
  }
  lane_->Release();
  return Step::kDone;
}

// Reduce in the order of the hierarchical algorithm: first inside each host, then over hosts.
void SmallAllreduce::ReduceByHosts() {
  const size_t bytes = in_.size();
  sources_[lane_->me()] = own_;
  const std::vector<const void*> sources(sources_.begin(), sources_.end());
  std::vector<std::byte> sum(bytes);
  CombineByHosts(reduction_, sum.data(), sources.data(), *hosts_, bytes / SizeOf(reduction_.dtype), &scaled_);
  Scatter(sum.data(), out_, 0, bytes, reduction_.dtype);
}

Allreduce::Allreduce(Exchange* exchange, Flat in, Flat out, Reduction reduction)
    : exchange_(exchange),
      in_(std::move(in)),
      out_(std::move(out)),
      reduction_(reduction),
      chunk_bytes_(exchange->there->piece_bytes() * static_cast<size_t>(exchange->members())),
      chunks_((in_.size() + chunk_bytes_ - 1) / chunk_bytes_),
      collector_(exchange->members()) {}

Range Allreduce::Piece(uint64_t chunk, int member) const {
  const size_t begin = chunk * chunk_bytes_;
  return ShareOf({begin, std::min(chunk_bytes_, in_.size() - begin)}, exchange_->members(), member);
}

bool Allreduce::Publish() {
  Lane& lane = *exchange_->there;
  if (published_ == chunks_ || !lane.CanPost()) return false;
  PostPieces(lane, in_, reduction_.dtype, reduction_.prescale, &outgoing_,
             [this](int j) { return Piece(published_, j); });
  ++published_;
  return true;
}

bool Allreduce::ReduceOwn() {
  Lane& there = *exchange_->there;
  Lane& back = *exchange_->back;
  // Reduce only published chunks, because in place the result of a chunk overwrites its input.
  if (reduced_ == published_ || !back.CanPost()) return false;
  const Range piece = Piece(reduced_, there.me());
  if (!FetchAll(there, Lane::Layout::kScatter, piece.length, &sources_)) return false;
  // Without shared memory, the result is sent from the tensor, so that no second copy is made.
  const std::byte* lies = back.by_sockets() ? out_.Contiguous(piece.begin, piece.length) : nullptr;
  ReducePiece(reduction_, in_, &out_, piece.begin, piece.length, sources_, there.me(), &scaled_,
              lies ? nullptr : back.Slot());
  there.Release();
  if (lies) {
    back.PostMulticastFrom(lies, piece.length);
  } else {
    back.PostMulticast(piece.length);
  }
  ++reduced_;
  return true;
}

bool Allreduce::Collect() {
  if (collected_ == reduced_) return false;
  const Step step = CollectPieces(collector_, *exchange_->back, Lane::Layout::kMulticast, out_, reduction_.dtype,
                                  [this](int j) { return Piece(collected_, j); });
  if (step == Step::kDone) ++collected_;
  return step != Step::kStuck;
}

Machine::Step Allreduce::Advance() {
  bool moved = Collect();
  moved |= ReduceOwn();
  moved |= Publish();
  if (collected_ == chunks_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
