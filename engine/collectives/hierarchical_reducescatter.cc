// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_reducescatter.h"

#include <algorithm>

#include "collectives/allreduce.h"

namespace hvd {
namespace {

// Return the number of owners in the fullest column of one host.
size_t OwnersOnHost(const HostGrid& grid) {
  const auto columns = static_cast<size_t>(grid.columns);
  return (grid.MostOnOneHost() + columns - 1) / columns;
}

// Return the number of owners in the fullest column, over all hosts.
size_t OwnersInColumn(const HostGrid& grid) {
  size_t owners = 0;
  for (int host = 0; host < grid.hosts(); ++host) owners += grid.InColumn(host, 0).size();
  return owners;
}

// Return how many bytes of each owner are processed in a round. Pieces inside and between hosts hold data of all owners
// of their column.
size_t PartBytes(const HostGrid& grid) {
  const size_t slot = grid.inside->there->slot_bytes(), hosts = grid.members.size();
  const size_t inside = slot / grid.MostOnOneHost() / kLine * kLine / OwnersInColumn(grid);
  const size_t across = std::min(RoomAcross(slot) / hosts / kLine * kLine, RoomAcross(slot / hosts));
  return std::min(inside, across / OwnersOnHost(grid)) / kLine * kLine;
}

}  // namespace

bool HierarchicalReducescatter::Fits(const HostGrid& grid) {
  constexpr size_t kLeastPiece = 2048;  // smallest share of a slot for each member, in bytes
  size_t members = 0;
  for (const auto& host_members : grid.members) members += host_members.size();
  const size_t room = members * kLeastPiece / kLine / 2;
  return grid.MostOnOneHost() * OwnersInColumn(grid) <= room && grid.members.size() * OwnersOnHost(grid) <= room;
}

HierarchicalReducescatter::HierarchicalReducescatter(const HostGrid& grid, const std::vector<Flat>& ins, Flat out,
                                                     const Reduction& reduction)
    : grid_(grid),
      me_(grid.members[grid.host][grid.position]),
      columns_(static_cast<size_t>(grid.columns)),
      out_(std::move(out)),
      local_{reduction.dtype, reduction.op, reduction.prescale, 1.0, 1},
      cross_{reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor},
      part_bytes_(PartBytes(grid)) {
  for (const Flat& in : ins) {
    sizes_.push_back(in.size());
    rounds_ = std::max<uint64_t>(rounds_, (in.size() + part_bytes_ - 1) / part_bytes_);
  }
  for (int column = 0; column < grid.columns; ++column) {
    begins_.push_back(in_.size());
    for (int host = 0; host < grid.hosts(); ++host) columns_[column].push_back(grid.InColumn(host, column));
    for (uint64_t round = 0; round < rounds_; ++round) {
      for (const std::vector<int>& owners : columns_[column]) {
        for (int owner : owners) in_.Append(ins[owner], Upto(owner, round), Length(owner, round));
      }
    }
  }
  if (!grid_.IsCarrier()) return;
  partial_bytes_ = OwnersOnHost(grid) * part_bytes_;
  partials_.resize(kInFlight * partial_bytes_);
}

size_t HierarchicalReducescatter::LengthOf(const std::vector<int>& members, uint64_t round) const {
  size_t length = 0;
  for (int member : members) length += Length(member, round);
  return length;
}

Range HierarchicalReducescatter::Piece(int column, uint64_t round) const {
  if (column >= grid_.columns) return {0, 0};
  Range piece{begins_[column], 0};
  for (const std::vector<int>& owners : columns_[column]) {
    piece.length += LengthOf(owners, round);
    for (int owner : owners) piece.begin += Upto(owner, round);
  }
  return piece;
}

bool HierarchicalReducescatter::Publish() {
  Lane& lane = *grid_.inside->there;
  if (published_ == rounds_ || !lane.CanPost()) return false;
  PostPieces(lane, in_, local_.dtype, local_.prescale, &outgoing_, [this](int j) { return Piece(j, published_); });
  ++published_;
  return true;
}

// Sum inside the host. Sums for other hosts are written directly to the slot from which they are sent.
bool HierarchicalReducescatter::ReduceInside() {
  Lane& inside = *grid_.inside->there;
  if (reduced_ == published_) return false;
  if (!grid_.IsCarrier()) {
    inside.Release();
    ++reduced_;
    return true;
  }
  Lane& across = *grid_.across->there;
  if (reduced_ - combined_ == kInFlight || !across.CanPost()) return false;
  Range piece = Piece(grid_.position, reduced_);
  if (!FetchAll(inside, Lane::Layout::kScatter, piece.length, &sources_)) return false;
  std::vector<size_t> lengths(grid_.members.size());
  for (int host = 0; host < grid_.hosts(); ++host) {
    const size_t length = lengths[host] = LengthOf(Column(host), reduced_);
    std::byte* sum =
        host == grid_.host ? Partial(reduced_) : across.Slot() + static_cast<size_t>(host) * across.piece_bytes();
    ReducePiece(local_, in_, nullptr, piece.begin, length, sources_, grid_.position, &scaled_, sum);
    piece.begin += length;
    for (const std::byte*& source : sources_) source += length;
  }
  across.PostScatter(lengths.data());
  inside.Release();
  ++reduced_;
  return true;
}

bool HierarchicalReducescatter::ReduceAcross() {
  if (!grid_.IsCarrier() || combined_ == reduced_) return false;
  Lane& across = *grid_.across->there;
  Lane& back = *grid_.inside->back;
  if (HandsOut() && !back.CanPost()) return false;
  const std::vector<int>& owners = Column(grid_.host);
  if (!FetchAll(across, Lane::Layout::kScatter, LengthOf(owners, combined_), &sources_)) return false;
  sources_[grid_.host] = Partial(combined_);
  std::vector<size_t> lengths(static_cast<size_t>(grid_.inside->members()), 0);
  size_t offset = 0, place = static_cast<size_t>(grid_.position);
  for (int owner : owners) {
    CombinePart(owner, offset, &lengths[place]);
    offset += lengths[place];
    place += static_cast<size_t>(grid_.columns);
  }
  across.Release();
  if (HandsOut()) {
    back.PostScatter(lengths.data());
    back.Release();
  }
  ++combined_;
  return true;
}

// Combine the part of one owner in the current round, at `offset` in all sources, into this rank's output or the
// owner's slot.
void HierarchicalReducescatter::CombinePart(int owner, size_t offset, size_t* length) {
  *length = Length(owner, combined_);
  if (*length == 0) return;
  std::vector<const void*> sources;
  for (const std::byte* source : sources_) sources.push_back(source + offset);
  const size_t begin = Upto(owner, combined_);
  std::byte* result = Partial(combined_) + offset;
  if (owner == me_) {
    if (std::byte* lies = out_.Contiguous(begin, *length)) result = lies;
  } else {
    const std::vector<int>& all = grid_.members[grid_.host];
    const auto place = static_cast<size_t>(std::find(all.begin(), all.end(), owner) - all.begin());
    result = grid_.inside->back->Slot() + place * grid_.inside->back->piece_bytes();
  }
  Combine(cross_, result, nullptr, sources.data(), static_cast<int>(sources.size()), *length / SizeOf(cross_.dtype));
  if (owner == me_) Scatter(result, out_, begin, *length);
}

bool HierarchicalReducescatter::TakeResult() {
  if (grid_.IsCarrier() || taken_ == rounds_) return false;
  Lane& back = *grid_.inside->back;
  const size_t begin = Upto(me_, taken_), length = Length(me_, taken_);
  const std::byte* result =
      back.Fetch(grid_.ColumnOf(grid_.position), Lane::Layout::kScatter, length, out_.Contiguous(begin, length));
  if (!result) return false;
  Scatter(result, out_, begin, length);
  back.Release();
  ++taken_;
  return true;
}

Machine::Step HierarchicalReducescatter::Advance() {
  if (!begun_ && !grid_.IsCarrier()) grid_.inside->back->PostNothing(rounds_);
  begun_ = true;
  bool moved = TakeResult();
  moved |= ReduceAcross();
  moved |= ReduceInside();
  moved |= Publish();
  if (reduced_ == rounds_ && (grid_.IsCarrier() ? combined_ : taken_) == rounds_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
