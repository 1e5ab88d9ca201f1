// SPDX-License-Identifier: Apache-2.0
#include "collectives/broadcast.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr size_t kChunksWanted = 8;
constexpr size_t kLeastChunk = size_t{64} << 10;
constexpr size_t kChunkUnit = 4096;
constexpr uint64_t kChunksInTurn = 4;  // chunks in one call, so that other state machines are not delayed

// Return a chunk size with which the root fills one chunk while the others copy the previous one. Even a message that
// would fit into one slot is split.
size_t SmallerChunk(const Lane& lane, size_t bytes) {
  const size_t chunk = std::max(kLeastChunk, (bytes / kChunksWanted + kChunkUnit - 1) / kChunkUnit * kChunkUnit);
  return std::min(chunk, lane.slot_bytes());
}

}  // namespace

void PostRange(const Flat& from, size_t begin, size_t length, Lane* lane) {
  const std::byte* lies = lane->by_sockets() ? from.Contiguous(begin, length) : nullptr;
  if (lies) return lane->PostMulticastFrom(lies, length);
  Gather(from, begin, length, DType::kUInt8, 1.0, lane->Slot());
  lane->PostMulticast(length);
}

Broadcast::Broadcast(Lane* lane, int root, Flat in, Flat out, bool brisk)
    : lane_(lane),
      is_root_(root == lane->me()),
      root_(root),
      in_(std::move(in)),
      out_(std::move(out)),
      chunk_bytes_(brisk ? SmallerChunk(*lane, out_.size()) : lane->slot_bytes()),
      chunks_((out_.size() + chunk_bytes_ - 1) / chunk_bytes_) {}

size_t Broadcast::ChunkLength(uint64_t chunk) const {
  return std::min(chunk_bytes_, out_.size() - chunk * chunk_bytes_);
}

bool Broadcast::ShowNext() {
  if (!lane_->CanPost()) return false;
  const size_t begin = done_ * chunk_bytes_, length = ChunkLength(done_);
  PostRange(in_, begin, length, lane_);
  lane_->Release();
  in_.ForRange(begin, length, [&](std::byte* data, size_t bytes, size_t offset, bool) {
    Scatter(data, out_, begin + offset, bytes);  // copies nothing if the root works in place
  });
  return true;
}

bool Broadcast::CopyNext() {
  const size_t begin = done_ * chunk_bytes_, length = ChunkLength(done_);
  const std::byte* chunk = lane_->Fetch(root_, Lane::Layout::kMulticast, length, out_.Contiguous(begin, length));
  if (!chunk) return false;
  Scatter(chunk, out_, begin, length);
  lane_->Release();
  return true;
}

Machine::Step Broadcast::Advance() {
  // Do this here and not in the constructor, because the lane may then still belong to the previous state machine.
  if (!begun_ && !is_root_) lane_->PostNothing(chunks_);
  begun_ = true;
  const uint64_t before = done_, turn = std::min(chunks_, done_ + kChunksInTurn);
  while (done_ < turn && (is_root_ ? ShowNext() : CopyNext())) ++done_;
  return done_ == chunks_ ? Step::kDone : done_ == before ? Step::kStuck : Step::kMoved;
}

}  // namespace hvd
