// SPDX-License-Identifier: Apache-2.0
#include "collectives/push.h"

#include <algorithm>
#include <cstring>

#include "collectives/allgather.h"
#include "memory/arena.h"

namespace hvd {
namespace {

// block that is read from memory once and written to every member from the cache
constexpr size_t kPushBlock = size_t{32} << 10;
// Bytes copied in one call, limited so that other state machines are not delayed.
constexpr size_t kPushTurn = size_t{512} << 10;

}  // namespace

Places::Places(Lane* lane, std::vector<std::byte*> arenas, std::vector<int64_t> own)
    : lane_(lane), arenas_(std::move(arenas)), told_(arenas_.size()) {
  told_[static_cast<size_t>(lane_->me())] = std::move(own);
}

int64_t Places::In(const std::byte* arena, Span output, Span input) {
  if (output.bytes == 0) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(arena), out = reinterpret_cast<uintptr_t>(output.data),
             in = reinterpret_cast<uintptr_t>(input.data);
  const bool inside = out >= begin && output.bytes <= Arena::kExtent && out - begin <= Arena::kExtent - output.bytes;
  const bool apart = out + output.bytes <= in || in + input.bytes <= out;
  return inside && apart ? static_cast<int64_t>(out - begin) : kElsewhere;
}

bool Places::Tell() {
  if (!lane_->CanPost()) return false;
  const std::vector<int64_t>& own = told_[static_cast<size_t>(lane_->me())];
  const size_t bytes = own.size() * sizeof(int64_t);
  std::memcpy(lane_->Slot(), own.data(), bytes);
  lane_->PostMulticast(bytes);
  return true;
}

bool Places::Hear() {
  const size_t count = told_[static_cast<size_t>(lane_->me())].size();
  std::vector<const std::byte*> pieces;
  if (!FetchAll(*lane_, Lane::Layout::kMulticast, count * sizeof(int64_t), &pieces)) return false;
  for (int j = 0; j < lane_->members(); ++j) {
    std::vector<int64_t>& numbers = told_[static_cast<size_t>(j)];
    if (j != lane_->me()) {
      numbers.resize(count);
      std::memcpy(numbers.data(), pieces[static_cast<size_t>(j)], count * sizeof(int64_t));
    }
    all_reached_ &= std::all_of(numbers.begin(), numbers.end(), [](int64_t number) {
      return number >= 0 && number <= static_cast<int64_t>(Arena::kExtent);
    });
  }
  lane_->Release();
  return true;
}

Push::Push(Lane* lane, std::vector<Flat> sources, std::vector<Flat> targets)
    : lane_(lane), sources_(std::move(sources)), targets_(std::move(targets)) {
  for (const Flat& source : sources_) longest_ = std::max(longest_, source.size());
}

Machine::Step Push::Advance() {
  if (posted_) {
    if (!lane_->AllPosted()) return Machine::Step::kStuck;
    lane_->Release();
    return Machine::Step::kDone;
  }
  const size_t members = targets_.size();
  for (size_t copied = 0; copied < kPushTurn && done_ < longest_; done_ += kPushBlock) {
    for (size_t step = 1; step <= members;
         ++step) {  // each member starts with a different target, so that they do not compete
      const size_t j = (static_cast<size_t>(lane_->me()) + step) % members;
      if (done_ >= sources_[j].size()) continue;
      const size_t length = std::min(kPushBlock, sources_[j].size() - done_);
      sources_[j].ForRange(done_, length, [&](std::byte* data, size_t bytes, size_t offset, bool) {
        Scatter(data, targets_[j], done_ + offset, bytes);
      });
      copied += length;
    }
  }
  if (done_ >= longest_) {
    uint64_t written = 0;
    for (const Flat& source : sources_) written += source.size();
    lane_->CountMemory(0, written - sources_[static_cast<size_t>(lane_->me())].size());
    lane_->PostNothing(1);
    posted_ = true;
  }
  return Machine::Step::kMoved;
}

PushAllgather::PushAllgather(Lane* lane, Flat in, std::vector<Flat> outs, Places places, std::vector<Range> rows)
    : lane_(lane), in_(std::move(in)), outs_(std::move(outs)), places_(std::move(places)), rows_(std::move(rows)) {}

void PushAllgather::Choose() {
  if (!places_.all_reached()) {
    staged_ = std::make_unique<Allgather>(lane_, std::move(in_), std::move(outs_));
    return;
  }
  const auto members = static_cast<size_t>(lane_->members());
  std::vector<Flat> targets(members);
  for (size_t j = 0; j < members; ++j) {
    for (size_t i = 0; i < rows_.size(); ++i) targets[j].Add(places_.at(j, i) + rows_[i].begin, rows_[i].length);
  }
  push_ = std::make_unique<Push>(lane_, std::vector<Flat>(members, in_), std::move(targets));
}

Machine::Step PushAllgather::Advance() {
  if (push_) return push_->Advance();
  if (staged_) return staged_->Advance();
  if (!told_ && !(told_ = places_.Tell())) return Step::kStuck;
  if (!places_.Hear()) return Step::kStuck;
  Choose();
  return Step::kMoved;
}

}  // namespace hvd
