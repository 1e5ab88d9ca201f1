// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_broadcast.h"

#include <algorithm>

#include "collectives/broadcast.h"

namespace hvd {
namespace {

bool TakeTo(const Flat& to, Range range, int from, Lane* lane) {
  const std::byte* chunk =
      lane->Fetch(from, Lane::Layout::kMulticast, range.length, to.Contiguous(range.begin, range.length));
  if (!chunk) return false;
  Scatter(chunk, to, range.begin, range.length);
  lane->Release();
  return true;
}

}  // namespace

HierarchicalBroadcast::HierarchicalBroadcast(const HostGrid& grid, int root, Flat in, Flat out)
    : grid_(grid), in_(std::move(in)), out_(std::move(out)), columns_(static_cast<uint64_t>(grid.columns)) {
  for (int host = 0; host < grid.hosts(); ++host) {
    const std::vector<int>& members = grid.members[host];
    const auto found = std::find(members.begin(), members.end(), root);
    if (found == members.end()) continue;
    root_host_ = host;
    root_ = static_cast<int>(found - members.begin());
  }
  at_root_ = grid.host == root_host_;
  is_root_ = at_root_ && grid.position == root_;
  first_carrier_ = static_cast<uint64_t>(grid.ColumnOf(root_));  // this is the root itself if it is a forwarding rank
  chunk_bytes_ = OverlappingChunk(out_.size(), RoomAcross(grid.inside->there->slot_bytes()));
  chunks_ = (out_.size() + chunk_bytes_ - 1) / chunk_bytes_;
  carried_ = grid.IsCarrier() ? NextOfOurs(0) : chunks_;
}

Range HierarchicalBroadcast::Chunk(uint64_t chunk) const {
  const size_t begin = chunk * chunk_bytes_;
  return {begin, std::min(chunk_bytes_, out_.size() - begin)};
}

uint64_t HierarchicalBroadcast::NextOfOurs(uint64_t chunk) const {
  while (chunk < chunks_ && CarrierOf(chunk) != grid_.position) ++chunk;
  return chunk;
}

// Post empty chunks between hosts, because only the root's host sends there. Do this here and not in the constructor,
// because the lanes may then still belong to the previous state machine.
void HierarchicalBroadcast::Begin() {
  begun_ = true;
  if (!grid_.IsCarrier() || at_root_) return;
  uint64_t ours = 0;
  for (uint64_t chunk = carried_; chunk < chunks_; chunk = NextOfOurs(chunk + 1)) ++ours;
  grid_.across->there->PostNothing(ours);
}

bool HierarchicalBroadcast::Show() {
  if (shown_ == chunks_) return false;
  Lane& lane = *grid_.inside->there;
  if (ShowerOf(shown_) != grid_.position) {
    lane.PostNothing(1);
  } else {
    if ((!is_root_ && carried_ <= shown_) || !lane.CanPost()) return false;
    const Range range = Chunk(shown_);
    PostRange(is_root_ ? in_ : out_, range.begin, range.length, &lane);
    if (is_root_) {
      in_.ForRange(range.begin, range.length, [&](std::byte* data, size_t bytes, size_t offset, bool) {
        Scatter(data, out_, range.begin + offset, bytes);  // copies nothing if the root works in place
      });
    }
  }
  ++shown_;
  return true;
}

bool HierarchicalBroadcast::Take() {
  if (taken_ == shown_) return false;
  Lane& lane = *grid_.inside->there;
  const int shower = ShowerOf(taken_);
  if (shower == grid_.position) {
    lane.Release();
  } else if (!TakeTo(out_, Chunk(taken_), shower, &lane)) {
    return false;
  }
  ++taken_;
  return true;
}

bool HierarchicalBroadcast::Carry() {
  if (carried_ >= chunks_) return false;
  Lane& lane = *grid_.across->there;
  const Range range = Chunk(carried_);
  if (at_root_) {
    if ((!is_root_ && taken_ <= carried_) || !lane.CanPost()) return false;
    PostRange(is_root_ ? in_ : out_, range.begin, range.length, &lane);
    lane.Release();
  } else if (!TakeTo(out_, range, root_host_, &lane)) {
    return false;
  }
  carried_ = NextOfOurs(carried_ + 1);
  return true;
}

Machine::Step HierarchicalBroadcast::Advance() {
  if (!begun_) Begin();
  bool moved = Carry();
  moved |= Show();
  moved |= Take();
  if (taken_ == chunks_ && carried_ >= chunks_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
