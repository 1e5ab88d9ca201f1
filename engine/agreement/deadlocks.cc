// SPDX-License-Identifier: Apache-2.0
#include "agreement/deadlocks.h"

#include <algorithm>

#include "base/rank_list.h"
#include "base/wire.h"

namespace hvd {
namespace {

constexpr size_t kMostPlaces = 8;     // largest number of places that a text lists
constexpr size_t kMostWarnings = 16;  // largest number of different warnings; more would not help

const Announced* CountIn(const std::vector<Announced>& announced, int32_t set, uint32_t epoch) {
  const auto found = std::find_if(announced.begin(), announced.end(),
                                  [&](const Announced& one) { return one.set == set && one.epoch == epoch; });
  return found == announced.end() ? nullptr : &*found;
}

// Return a text such as "20 s" or "1.5 s".
std::string SecondsOf(WatchSpan span) {
  const int64_t tenths = std::chrono::duration_cast<std::chrono::milliseconds>(span).count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 ? "." + std::to_string(tenths % 10) : "") + " s";
}

bool GetFlag(std::string_view* in, bool* flag) {
  uint8_t byte = 0;
  if (!wire::Get(in, &byte) || byte > 1) return false;
  *flag = byte;
  return true;
}

}  // namespace

void Encode(const Block& block, std::string* out) {
  wire::Put(out, block.rank);
  wire::Put(out, block.thread);
  wire::Put(out, block.number);
  wire::Put(out, static_cast<uint8_t>(block.over));
  wire::Put(out, static_cast<uint8_t>(block.alone));
  wire::Put(out, static_cast<uint8_t>(block.others_are_idle));
  wire::Put(out, block.set);
  wire::Put(out, block.epoch);
  wire::PutString(out, block.name);
  wire::PutString(out, block.group);
  wire::PutString(out, block.what);
  wire::PutString(out, block.others);
  wire::PutVector(out, block.announced);
  wire::PutVector(out, block.missing);
}

bool Decode(std::string_view* in, Block* block) {
  return wire::Get(in, &block->rank) && wire::Get(in, &block->thread) && wire::Get(in, &block->number) &&
         GetFlag(in, &block->over) && GetFlag(in, &block->alone) && GetFlag(in, &block->others_are_idle) &&
         wire::Get(in, &block->set) && wire::Get(in, &block->epoch) && wire::GetString(in, &block->name) &&
         wire::GetString(in, &block->group) && wire::GetString(in, &block->what) &&
         wire::GetString(in, &block->others) && wire::GetVector(in, &block->announced) &&
         wire::GetVector(in, &block->missing);
}

void Encode(const Deadlock& deadlock, std::string* out) {
  wire::Put(out, static_cast<uint8_t>(deadlock.certain));
  wire::PutString(out, deadlock.text);
  wire::Put(out, static_cast<uint32_t>(deadlock.ranks.size()));
  for (const Deadlock::Stuck& one : deadlock.ranks) {
    wire::Put(out, one.rank);
    wire::PutVector(out, one.announced);
  }
}

bool Decode(std::string_view* in, Deadlock* deadlock) {
  uint32_t count = 0;
  if (!GetFlag(in, &deadlock->certain) || !wire::GetString(in, &deadlock->text) || !wire::Get(in, &count)) return false;
  for (; count > 0; --count) {
    Deadlock::Stuck one;
    if (!wire::Get(in, &one.rank) || !wire::GetVector(in, &one.announced)) return false;
    deadlock->ranks.push_back(std::move(one));
  }
  return true;
}

// Add a report. Reports of one rank may overtake each other, because each passes through the leader of its set.
void Deadlocks::Hear(Block block) {
  const int rank = block.rank;
  uint64_t& latest = numbers_[rank];
  if (block.number <= latest) return;
  latest = block.number;
  Blocks& blocks = blocks_[rank];
  blocks.erase(block.thread);
  if (!block.over) blocks.emplace(block.thread, std::move(block));
  if (blocks.empty()) blocks_.erase(rank);
}

void Deadlocks::Forget(int rank) { blocks_.erase(rank); }

void Deadlocks::Forget(const Ranks& ranks) {
  for (int rank : ranks) blocks_.erase(rank);
}

Deadlocks::Rescuers Deadlocks::RescuersOf(const Blocks& blocks) {
  const Block& first = blocks.begin()->second;
  if (blocks.size() == 1 && first.alone) return Rescuers::kNone;
  return blocks.size() == 1 && first.others_are_idle ? Rescuers::kIdle : Rescuers::kAny;
}

bool Deadlocks::WaitsFor(const Block& block, const Ranks& others, Rescuers allowed) const {
  return std::any_of(block.missing.begin(), block.missing.end(), [&](const Block::Missing& missing) {
    const int rank = static_cast<int>(missing.rank);
    if (!others.count(rank)) return false;
    if (allowed == Rescuers::kAny) return true;
    const Announced* announced = CountIn(blocks_.at(rank).begin()->second.announced, block.set, block.epoch);
    return announced && announced->count == missing.heard;
  });
}

// Return the stuck ranks: start with all that could be stuck, and remove ranks that do not wait for a stuck rank until
// none is left to remove.
Deadlocks::Ranks Deadlocks::Stuck(Rescuers allowed) const {
  Ranks stuck;
  for (const auto& [rank, blocks] : blocks_) {
    if (RescuersOf(blocks) <= allowed) stuck.insert(rank);
  }
  const auto goes_on = [&](int rank) {
    const Blocks& blocks = blocks_.at(rank);
    return !std::all_of(blocks.begin(), blocks.end(),
                        [&](const auto& item) { return WaitsFor(item.second, stuck, allowed); });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = stuck.begin(); it != stuck.end();) {
      const bool leaves = goes_on(*it);
      changed |= leaves;
      it = leaves ? stuck.erase(it) : std::next(it);
    }
  }
  return stuck;
}

bool Deadlocks::HasSettled(const Ranks& ranks, WatchTime* since, WatchTime now) const {
  if (ranks.empty()) {
    *since = {};
    return false;
  }
  if (*since == WatchTime()) *since = now;
  return now - *since >= settling_;
}

// Return true if these ranks have waited like this for so long that no idle thread is expected to end the waits.
bool Deadlocks::HasLasted(const Ranks& ranks, WatchTime now) {
  std::string found = Identify(ranks);
  if (found != idle_) {
    idle_ = std::move(found);
    idle_since_ = now;
  }
  return !ranks.empty() && now - idle_since_ >= patience_;
}

// Return a text that changes as soon as any of these ranks waits for something else or has submitted something.
std::string Deadlocks::Identify(const Ranks& ranks) const {
  std::string text;
  for (int rank : ranks) {
    const Block& block = blocks_.at(rank).begin()->second;
    wire::Put(&text, static_cast<int32_t>(rank));
    wire::Put(&text, block.thread);
    wire::Put(&text, block.set);
    wire::Put(&text, block.epoch);
    wire::PutString(&text, block.name);
    wire::PutVector(&text, block.announced);
  }
  return text;
}

// Return a text such as "rank 0: 'logger' (log.py:12); rank 2: 'tracker' (track.py:3)".
std::string Deadlocks::ListIdleThreads(const Ranks& ranks) const {
  std::string text;
  size_t named = 0, left_out = 0;
  for (int rank : ranks) {
    const std::string& others = blocks_.at(rank).begin()->second.others;
    if (others.empty()) continue;
    if (named == kMostPlaces) {
      ++left_out;
      continue;
    }
    text += (named++ ? "; rank " : "rank ") + std::to_string(rank) + ": " + others;
  }
  return left_out ? text + " and " + std::to_string(left_out) + " more ranks" : text;
}

// Return a text such as "ranks 0, 2 in allreduce 'x' (train.py:12), rank 1 in allgather 'x' (train.py:30)", ordered by
// first rank.
std::string Deadlocks::Listed(const Ranks& ranks) const {
  std::vector<std::pair<std::string, std::vector<int>>> places;
  for (int rank : ranks) {
    for (const auto& [thread, block] : blocks_.at(rank)) {
      const auto same = [&block = block](const auto& place) { return place.first == block.what; };
      auto place = std::find_if(places.begin(), places.end(), same);
      if (place == places.end()) place = places.insert(place, {block.what, {}});
      if (place->second.empty() || place->second.back() != rank) place->second.push_back(rank);
    }
  }
  std::string text;
  for (size_t i = 0; i < places.size() && i < kMostPlaces; ++i) {
    text += (i ? ", " : "") + NameRanks(places[i].second) + " in " + places[i].first;
  }
  if (places.size() > kMostPlaces) text += " and " + std::to_string(places.size() - kMostPlaces) + " more";
  return text;
}

Deadlock Deadlocks::Told(const Ranks& ranks, bool certain, std::string text) const {
  Deadlock deadlock;
  deadlock.certain = certain;
  deadlock.text = std::move(text);
  for (int rank : ranks) deadlock.ranks.push_back({rank, blocks_.at(rank).begin()->second.announced});
  return deadlock;
}

std::vector<Deadlock> Deadlocks::Find(WatchTime now) {
  std::vector<Deadlock> found;
  const auto fail = [&](const Ranks& stuck, const std::string& why) {
    const std::string text = "Ranks wait for different operations: " + Listed(stuck) + ". " + why;
    found.push_back(Told(stuck, true, text + "All ranks must call the same collectives."));
    Forget(stuck);
  };
  if (const Ranks stuck = Stuck(Rescuers::kNone); HasSettled(stuck, &certain_since_, now)) {
    fail(stuck, "");
    certain_since_ = {};
  }
  if (const Ranks stuck = Stuck(Rescuers::kIdle); certain_since_ == WatchTime() && HasLasted(stuck, now)) {
    fail(stuck, "They have waited for more than " + SecondsOf(patience_) +
                    ", and their other threads, which have never called Horovod, did not help: " +
                    ListIdleThreads(stuck) + ". ");
    idle_.clear();
  }
  // Do not warn about ranks in a certain deadlock, because the error will name them soon.
  if (const Ranks seem = Stuck(Rescuers::kAny); certain_since_ == WatchTime() && HasSettled(seem, &seems_since_, now)) {
    const bool fails_later = seem == Stuck(Rescuers::kIdle);
    std::string text = "Ranks wait for different operations: " + Listed(seem) +
                       ". Unless another thread of these ranks still calls what the others wait for, they wait for " +
                       (fails_later ? SecondsOf(patience_) + " and then fail" : "ever") +
                       ": all ranks must call the same collectives.";
    if (warnings_.size() < kMostWarnings && warnings_.insert(text).second) found.push_back(Told(seem, false, text));
  }
  return found;
}

}  // namespace hvd
