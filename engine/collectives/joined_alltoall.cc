// SPDX-License-Identifier: Apache-2.0
#include "collectives/joined_alltoall.h"

#include <cstring>

namespace hvd {
namespace {

constexpr size_t kRowsBytes = sizeof(int64_t);  // every message begins with its number of rows

size_t MessageBytes(size_t row_bytes, int64_t largest) {
  return (kRowsBytes + static_cast<size_t>(largest) * row_bytes + kRowsBytes - 1) / kRowsBytes * kRowsBytes;
}

}  // namespace

bool JoinedAlltoall::Pays(const HostGrid& grid, size_t row_bytes, int64_t largest) {
  if (!grid.Even()) return false;
  const size_t message = MessageBytes(row_bytes, largest);
  const size_t joined = message * static_cast<size_t>(grid.columns);
  return joined <= kJoinedAlltoallBytes && joined <= grid.across->there->piece_bytes() &&
         message * grid.members.size() <= grid.inside->there->piece_bytes();
}

JoinedAlltoall::JoinedAlltoall(const HostGrid& grid, const std::byte* in, const std::vector<int64_t>& splits,
                               size_t row_bytes, int64_t largest,
                               std::function<std::byte*(const std::vector<int64_t>&)> allocate)
    : grid_(grid),
      in_(in),
      splits_(splits),
      begins_(splits.size(), 0),
      row_bytes_(row_bytes),
      message_bytes_(MessageBytes(row_bytes, largest)),
      allocate_(std::move(allocate)) {
  for (size_t j = 1; j < splits_.size(); ++j) {
    begins_[j] = begins_[j - 1] + static_cast<size_t>(splits_[j - 1]) * row_bytes_;
  }
}

void JoinedAlltoall::Write(int member, std::byte* to) const {
  const auto j = static_cast<size_t>(member);
  const size_t bytes = static_cast<size_t>(splits_[j]) * row_bytes_;
  std::memcpy(to, &splits_[j], kRowsBytes);
  if (bytes) std::memcpy(to + kRowsBytes, in_ + begins_[j], bytes);
}

bool JoinedAlltoall::SendAcross() {
  Lane& lane = *grid_.across->there;
  if (sent_ || !lane.CanPost()) return false;
  std::vector<size_t> lengths(grid_.members.size(), message_bytes_ * static_cast<size_t>(grid_.columns));
  for (int host = 0; host < grid_.hosts(); ++host) {
    if (host == grid_.host) continue;
    std::byte* to = lane.Slot() + static_cast<size_t>(host) * lane.piece_bytes();
    std::memset(to, 0, lengths[host]);  // the padding must not contain stale memory
    for (int member : grid_.members[host]) {
      Write(member, to);
      to += message_bytes_;
    }
  }
  lane.PostScatter(lengths.data());
  return sent_ = true;
}

// Post to each member of this host the messages from this member's counterparts and from this member, ordered by host.
bool JoinedAlltoall::PassOn() {
  Lane& across = *grid_.across->there;
  Lane& inside = *grid_.inside->there;
  if (!sent_ || passed_on_ || !inside.CanPost()) return false;
  const size_t members = static_cast<size_t>(grid_.columns), piece = message_bytes_ * grid_.members.size();
  if (!FetchAll(across, Lane::Layout::kScatter, message_bytes_ * members, &pieces_)) return false;
  own_.resize(piece);
  for (size_t place = 0; place < members; ++place) {
    const bool ours = static_cast<int>(place) == grid_.position;
    std::byte* to = ours ? own_.data() : inside.Slot() + place * inside.piece_bytes();
    if (!ours) std::memset(to, 0, piece);
    for (int host = 0; host < grid_.hosts(); ++host, to += message_bytes_) {
      if (host == grid_.host) {
        Write(grid_.members[host][place], to);
      } else {
        std::memcpy(to, pieces_[host] + place * message_bytes_, message_bytes_);
      }
    }
  }
  across.Release();
  inside.PostScatter(std::vector<size_t>(members, piece).data());
  return passed_on_ = true;
}

bool JoinedAlltoall::Collect() {
  Lane& inside = *grid_.inside->there;
  if (!passed_on_) return false;
  const size_t piece = message_bytes_ * grid_.members.size();
  if (!FetchAll(inside, Lane::Layout::kScatter, piece, &pieces_)) return false;
  pieces_[grid_.position] = own_.data();
  Deliver();
  inside.Release();
  return true;
}

void JoinedAlltoall::Deliver() {
  std::vector<const std::byte*> messages(splits_.size());
  std::vector<int64_t> received(splits_.size());
  for (int host = 0; host < grid_.hosts(); ++host) {
    for (size_t place = 0; place < pieces_.size(); ++place) {
      const auto member = static_cast<size_t>(grid_.members[host][place]);
      messages[member] = pieces_[place] + static_cast<size_t>(host) * message_bytes_;
      std::memcpy(&received[member], messages[member], kRowsBytes);
    }
  }
  std::byte* out = allocate_(received);
  for (size_t j = 0; j < messages.size(); ++j) {
    const size_t bytes = static_cast<size_t>(received[j]) * row_bytes_;
    if (bytes == 0) continue;
    std::memcpy(out, messages[j] + kRowsBytes, bytes);
    out += bytes;
  }
}

Machine::Step JoinedAlltoall::Advance() {
  bool moved = SendAcross();
  moved |= PassOn();
  if (Collect()) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
