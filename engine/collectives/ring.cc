// SPDX-License-Identifier: Apache-2.0
#include "collectives/ring.h"

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

constexpr size_t kLeastInRing = size_t{16}
                                << 10;  // bytes; the overhead of a smaller message exceeds the time for its bytes

size_t RingChunkBytes(const Exchange& exchange, const PartialSums& sums, size_t bytes) {
  const size_t fits = std::min(RingBetweenHosts::kMostChunk, exchange.there->slot_bytes()) / sums.Size(kLine) * kLine;
  const size_t even = bytes / (4 * static_cast<size_t>(exchange.members())) / kLine * kLine;
  return std::max(kLine, std::min(fits, std::max(even, kLeastInRing)));
}

}  // namespace

RingBetweenHosts::RingBetweenHosts(Exchange* exchange, Run run)
    : exchange_(exchange),
      run_(std::move(run)),
      sums_(run_.reduction),
      chunk_bytes_(RingChunkBytes(*exchange, sums_, run_.bytes)),
      own_(sums_.Size(chunk_bytes_)) {}

void RingBetweenHosts::Add(Range block) {
  size_t begin = 0;
  do {
    const size_t length = std::min(chunk_bytes_, block.length - begin);
    chunks_.push_back({{block.begin + begin, length}, begin + length == block.length});
    begin += length;
  } while (begin < block.length);
}

bool RingBetweenHosts::AddOwn() {
  Lane& lane = *exchange_->there;
  const int me = lane.me(), last = lane.members() - 1;
  if (added_ == chunks_.size() || !lane.CanPost() || (me == last && !exchange_->back->CanPost())) return false;
  const Range range = chunks_[added_].range;
  const size_t bytes = sums_.Size(range.length);
  if (me == 0) {
    lane.PostTo(1, sums_.Own(run_.in, range, lane.Slot()), bytes);
  } else {
    const std::byte* before = lane.Fetch(me - 1, Lane::Layout::kScatter, bytes);
    if (!before) return false;
    if (me == last) {
      FinishSum(range, before);
      lane.PostNothing(1);
    } else {
      sums_.Add(before, sums_.Own(run_.in, range, own_.data()), range.length, lane.Slot());
      lane.PostTo(me + 1, lane.Slot(), bytes);
    }
  }
  lane.Release();
  finished_ += me == last && chunks_[added_].ends_block;
  ++added_;
  return true;
}

void RingBetweenHosts::FinishSum(const Range& range, const std::byte* before) {
  Lane& lane = *exchange_->back;
  std::byte* const lies = run_.out.Contiguous(range.begin, range.length);
  std::byte* const to = lies ? lies : lane.Slot();
  sums_.Finish(before, sums_.Own(run_.in, range, own_.data()), range.length, to);
  if (!lies) Scatter(to, run_.out, range.begin, range.length, run_.reduction.dtype);
  PassOn(0, lies, to, range.length);
  lane.Release();
}

void RingBetweenHosts::PassOn(int member, const std::byte* lies, const std::byte* result, size_t length) {
  Lane& lane = *exchange_->back;
  if (lies && run_.stays) return lane.PostTo(member, lies, length);
  if (length && result != lane.Slot()) std::memcpy(lane.Slot(), result, length);
  lane.PostTo(member, lane.Slot(), length);
}

bool RingBetweenHosts::TakeResult() {
  Lane& lane = *exchange_->back;
  const int me = lane.me(), last = lane.members() - 1;
  if (me == last || received_ == added_ || !lane.CanPost()) return false;
  const Range range = chunks_[received_].range;
  std::byte* const lies = run_.out.Contiguous(range.begin, range.length);
  const std::byte* result = lane.Fetch(me == 0 ? last : me - 1, Lane::Layout::kScatter, range.length, lies);
  if (!result) return false;
  Scatter(result, run_.out, range.begin, range.length, run_.reduction.dtype);
  if (me + 1 == last) {
    lane.PostNothing(1);
  } else {
    PassOn(me + 1, lies, result, range.length);
  }
  lane.Release();
  finished_ += chunks_[received_].ends_block;
  ++received_;
  return true;
}

bool RingBetweenHosts::Advance() {
  const bool took = TakeResult();
  return AddOwn() || took;
}

}  // namespace hvd
