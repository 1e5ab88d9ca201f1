// SPDX-License-Identifier: Apache-2.0
#include "collectives/doubling.h"

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

constexpr size_t kWholeBytes = size_t{16} << 10;  // up to this size, fewer messages save more than fewer bytes

// Split a range into halves at a cache-line boundary.
std::pair<Range, Range> Halves(Range range) { return {ShareOf(range, 2, 0), ShareOf(range, 2, 1)}; }

// Numbering of members for an algorithm that needs a power of two. Each surplus member is paired with a neighbour, and
// the pair has one number.
struct Numbering {
  explicit Numbering(int members) {
    while (2 * count <= members) count *= 2;
    paired = members - count;
  }
  // Return true if the member sends all its data to the next one.
  bool Hands(int member) const { return member < 2 * paired && member % 2 == 0; }
  int Number(int member) const { return member < 2 * paired ? member / 2 : member - paired; }
  int Member(int number) const { return number < paired ? 2 * number + 1 : number + paired; }

  int count = 1;  // how many numbers there are
  int paired = 0;
};

}  // namespace

std::vector<DoublingBetweenHosts::Move> DoublingBetweenHosts::Plan(int members, int me, size_t length, bool whole) {
  using Then = Move::Then;
  const Numbering numbering(members);
  const Range all{0, length};
  const bool hands = numbering.Hands(me), receives = !hands && me < 2 * numbering.paired;
  const int number = numbering.Number(me);
  std::vector<Move> moves;
  if (numbering.paired > 0) {
    Move move;
    if (hands) move = {me + 1, -1, all, {0, 0}, Then::kKeep, false};
    if (receives) move = {-1, me - 1, {0, 0}, all, Then::kAdd, true};
    moves.push_back(move);
  }
  std::vector<std::pair<int, Range>> way;  // partner in each step, and this member's range before the step
  Range range = all;
  for (int distance = 1; distance < numbering.count; distance *= 2) {
    const bool upper = number & distance;
    const int partner = numbering.Member(number ^ distance);
    const Then then = 2 * distance == numbering.count ? Then::kFinish : Then::kAdd;
    const auto [low, high] = Halves(range);
    const Range ours = whole ? range : upper ? high : low, theirs = whole ? range : upper ? low : high;
    moves.push_back(hands ? Move() : Move{partner, partner, theirs, ours, then, upper});
    way.emplace_back(partner, range);
    range = ours;
  }
  for (; !whole && !way.empty(); way.pop_back()) {
    const auto& [partner, before] = way.back();
    const auto [low, high] = Halves(before);
    const bool upper = number & (1 << (way.size() - 1));
    moves.push_back(hands ? Move() : Move{partner, partner, range, upper ? low : high, Then::kKeep, false});
    range = before;
  }
  if (numbering.paired > 0) {
    Move move;
    if (receives) move = {me - 1, -1, all, {0, 0}, Then::kKeep, false};
    if (hands) move = {-1, me + 1, {0, 0}, all, Then::kKeep, false};
    moves.push_back(move);
  }
  return moves;
}

DoublingBetweenHosts::DoublingBetweenHosts(Exchange* exchange, Run run, size_t most)
    : exchange_(exchange),
      run_(std::move(run)),
      sums_(run_.reduction),
      most_whole_(std::min(kWholeBytes, exchange->there->slot_bytes())),
      work_(std::min<uint64_t>(2 * kTogether, std::max<uint64_t>(run_.blocks, 1))),
      came_(sums_.Size(most)) {
  for (Work& work : work_) {
    work.partial.resize(sums_.Size(most));
    if (sums_.widened()) work.result.resize(most);
  }
}

void DoublingBetweenHosts::Add(Range block) {
  const bool whole = sums_.Size(block.length) <= most_whole_;
  blocks_.push_back({block, whole, Plan(exchange_->members(), exchange_->me(), block.length, whole)});
}

// Return the block at the cursor, after skipping steps that do not exist. In each group, the first step of all blocks
// is followed by the second step of all blocks that have one, and so on.
DoublingBetweenHosts::Block* DoublingBetweenHosts::At(Cursor* cursor) {
  for (;;) {
    const uint64_t begin = cursor->group * kTogether, end = std::min(run_.blocks, begin + kTogether);
    if (begin >= run_.blocks) return nullptr;
    if (cursor->block < begin) cursor->block = begin;
    if (cursor->block == end) {
      cursor->block = begin;
      ++cursor->step;
      // All blocks of the group have been added by now, because no second step is taken before that.
      const bool any = std::any_of(blocks_.begin() + static_cast<std::ptrdiff_t>(begin),
                                   blocks_.begin() + static_cast<std::ptrdiff_t>(end),
                                   [&](const Block& block) { return cursor->step < block.moves.size(); });
      if (!any) *cursor = {cursor->group + 1, end, 0};
      continue;
    }
    if (cursor->block >= blocks_.size()) return nullptr;
    Block& block = blocks_[cursor->block];
    if (cursor->step < block.moves.size()) return &block;
    ++cursor->block;
  }
}

bool DoublingBetweenHosts::Post() {
  Lane& lane = *exchange_->there;
  Block* const block = At(&posting_);
  if (!block || block->taken != posting_.step || !lane.CanPost()) return false;
  Work& work = WorkOf(posting_);
  if (posting_.step == 0) {
    // An earlier block used this buffer; it must be finished and its data must have been sent.
    if (posting_.block >= finished_ + work_.size() || !lane.HaveLeft(work.last_post)) return false;
    sums_.Take(run_.in, block->range, work.partial.data());
  }
  const Move& move = block->moves[posting_.step];
  if (move.to < 0) {
    lane.PostNothing(1);
  } else {
    const bool summed = move.then == Move::Then::kKeep && posting_.step > 0;
    const std::byte* from =
        summed ? ResultOf(work) + move.sent.begin : work.partial.data() + sums_.Size(move.sent.begin);
    const size_t bytes = summed ? move.sent.length : sums_.Size(move.sent.length);
    if (block->whole && !summed) {  // copy the data, because received data may be added to it before it is sent
      std::memcpy(lane.Slot(), from, bytes);
      from = lane.Slot();
    }
    lane.PostTo(move.to, from, bytes);
  }
  work.last_post = lane.posted();
  ++posts_;
  ++posting_.block;
  return true;
}

bool DoublingBetweenHosts::Take() {
  if (takes_ == posts_) return false;
  Lane& lane = *exchange_->there;
  Block& block = *At(&taking_);
  Work& work = WorkOf(taking_);
  const Move& move = block.moves[taking_.step];
  if (move.from >= 0) {
    const bool keeps = move.then == Move::Then::kKeep;
    const size_t bytes = keeps ? move.awaited.length : sums_.Size(move.awaited.length);
    std::byte* const to = keeps ? ResultOf(work) + move.awaited.begin : came_.data();
    if (!lane.Fetch(move.from, Lane::Layout::kScatter, bytes, to)) return false;
    Use(move, to, &work);
  }
  lane.Release();
  ++takes_;
  if (++block.taken == block.moves.size()) {
    Scatter(ResultOf(work), run_.out, block.range.begin, block.range.length, run_.reduction.dtype);
  }
  // Count the finished blocks. A short block has fewer steps and may finish before earlier ones.
  while (finished_ < blocks_.size() && blocks_[finished_].taken == blocks_[finished_].moves.size()) ++finished_;
  ++taking_.block;
  return true;
}

void DoublingBetweenHosts::Use(const Move& move, const std::byte* came, Work* work) {
  if (move.then == Move::Then::kKeep) return;
  std::byte* const ours = work->partial.data() + sums_.Size(move.awaited.begin);
  const std::byte* const first = move.first ? came : ours;
  const std::byte* const second = move.first ? ours : came;
  if (move.then == Move::Then::kAdd) return sums_.Add(first, second, move.awaited.length, ours);
  sums_.Finish(first, second, move.awaited.length, ResultOf(*work) + move.awaited.begin);
}

bool DoublingBetweenHosts::Advance() {
  const bool took = Take();
  return Post() || took;
}

}  // namespace hvd
