// SPDX-License-Identifier: Apache-2.0
#include "collectives/exchange.h"

#include <cstring>

namespace hvd {

ExchangeBetweenHosts::ExchangeBetweenHosts(Exchange* exchange, Run run)
    : exchange_(exchange),
      run_(std::move(run)),
      reduction_(run_.reduction),
      lengths_(static_cast<size_t>(exchange->members())),
      pieces_(lengths_.size()),
      collector_(exchange->members()) {}

Range ExchangeBetweenHosts::Share(uint64_t block, int host) const {
  return ShareOf({0, blocks_[block].length}, exchange_->members(), host);
}

bool ExchangeBetweenHosts::Send() {
  Lane& lane = *exchange_->there;
  if (sent_ == blocks_.size() || !lane.CanPost()) return false;
  for (int h = 0; h < lane.members(); ++h) {
    const Range share = Share(sent_, h);
    lengths_[static_cast<size_t>(h)] = share.length;
    pieces_[static_cast<size_t>(h)] = At(sent_) + share.begin;
  }
  // Send in place, because the data stays until the answer overwrites it.
  lane.PostScatterFrom(pieces_.data(), lengths_.data());
  ++sent_;
  return true;
}

bool ExchangeBetweenHosts::Reduce() {
  Lane& there = *exchange_->there;
  Lane& back = *exchange_->back;
  if (reduced_ == sent_ || !back.CanPost()) return false;
  const Range share = Share(reduced_, there.me());
  if (!FetchAll(there, Lane::Layout::kScatter, share.length, &sources_)) return false;
  if (share.length > 0) {
    std::byte* const own = At(reduced_) + share.begin;
    sources_[static_cast<size_t>(there.me())] = own;
    std::vector<const void*> sources(sources_.begin(), sources_.end());
    Combine(reduction_, own, back.Slot(), sources.data(), there.members(), share.length / SizeOf(reduction_.dtype));
  }
  there.Release();
  back.PostMulticast(share.length);
  ++reduced_;
  return true;
}

bool ExchangeBetweenHosts::Collect() {
  if (finished_ == reduced_) return false;
  auto target = [this](int h) {
    const Range share = Share(finished_, h);
    return std::make_pair(share.length, share.length ? At(finished_) + share.begin : nullptr);
  };
  const Machine::Step step =
      collector_.Run(*exchange_->back, Lane::Layout::kMulticast, target, [&](int h, const std::byte* result) {
        const auto [length, to] = target(h);
        if (length && result != to) std::memcpy(to, result, length);
      });
  if (step == Machine::Step::kDone) ++finished_;
  return step != Machine::Step::kStuck;
}

bool ExchangeBetweenHosts::Advance() {
  bool moved = Collect();
  moved |= Reduce();
  moved |= Send();
  return moved;
}

}  // namespace hvd
