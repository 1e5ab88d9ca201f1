// SPDX-License-Identifier: Apache-2.0
// What a record changes beyond its own process set: the list of process sets, launch order and tuning values.
#include <algorithm>

#include "agreement/watch.h"
#include "core/engine.h"
#include "core/foreign_execution.h"

namespace hvd {
namespace {

// Longest wait before memory on a device is freed although a peer may still read it.
constexpr std::chrono::seconds kLeaveDevice(2);

}  // namespace

void Engine::Apply(Membership& membership, Record record) {
  if (!departures_.over().ok()) return;
  const Applier::Outcome outcome = membership.applier.Apply(&record);
  if (!outcome.status.ok()) return Heed(outcome.status);
  if (record.kind == RecordKind::kTune && membership.set.id() == kGlobalSet) return ApplyTuning(record.tuning);
  if (record.kind == RecordKind::kTurns) return AddTurns(record.turns);
  if (!outcome.change) return;
  const bool adds = outcome.change->request.kind == OpKind::kAddProcessSet;
  adds ? AddSet(membership.state, *outcome.change) : RemoveSet(membership.state, *outcome.change);
}

void Engine::Tuned::Store(const Tuning& values) {
  fusion_threshold.store(values.fusion_threshold, kRelaxed);
  cycle_time_us.store(values.cycle_time_us, kRelaxed);
  chunk_bytes.store(values.chunk_bytes, kRelaxed);
  final.store(values.final, kRelaxed);
}

Tuning Engine::Tuned::Load() const {
  return {fusion_threshold.load(kRelaxed), cycle_time_us.load(kRelaxed), chunk_bytes.load(kRelaxed),
          final.load(kRelaxed)};
}

void Engine::AddTurns(const std::vector<Turn>& turns) {
  for (const Turn& turn : turns) {
    const auto set = sets_.find(turn.set);
    if (set != sets_.end() && set->second->set.epoch() == turn.epoch) launches_.Add(turn);
  }
}

void Engine::AskForTurns() {
  const Membership& global = *sets_.at(kGlobalSet);
  for (const Turn& turn : launches_.TakeWanted()) {
    const std::string message = control::EncodeTurn(global.set.tag(), turn);
    OnTurn(global, message, std::string_view(message).substr(control::kHeaderBytes));
  }
}

void Engine::OnTurn(const Membership& global, std::string_view whole, std::string_view body) {
  if (!global.leader) {
    if (global.state.closed().ok()) mailbox_.Send(global.set.ranks()[global.set.tree().parent], whole);
    return;
  }
  Turn turn;
  if (!Decode(&body, &turn)) return Abort(-1, "a process set's leader asked for a turn in a malformed message");
  global.leader->coordinator().Give(turn);
}

// Apply new tuning values. Each set changes its chunk size by its own log, so leaders pass the values on there.
void Engine::ApplyTuning(const Tuning& tuning) {
  tuned_.Store(tuning);
  for (auto& [id, membership] : sets_) {
    if (id != kGlobalSet && membership->leader) membership->leader->coordinator().Tune(tuning);
  }
}

// Expect connections to the members that this rank exchanges messages with. Both ends expect a link, even if only one
// of them sends: a rank that leaves sends its leave notice on all of its links and waits until they are connected.
void Engine::ExpectMembers(const ProcessSet& set) {
  const std::vector<int>& ranks = set.ranks();
  if (set.tree().parent >= 0) mailbox_.Expect(ranks[set.tree().parent], true);
  for (int child : set.tree().children) mailbox_.Expect(ranks[child], true);
  for (const std::vector<int>* others : {&set.relays().Tellers(), &set.relays().Hearers()}) {
    for (int other : *others) {
      if (!departures_.meant_to_leave(ranks[other])) mailbox_.Expect(ranks[other], false);
    }
  }
}

void Engine::AddSet(MemberState& global, const Entry& entry) {
  auto operation = global.pending().Take(entry.request.name);
  const int id = static_cast<int>(entry.sizes.at(0));
  const uint32_t epoch = static_cast<uint32_t>(entry.sizes.at(1));
  std::vector<int> ranks(entry.request.splits.begin() + 1, entry.request.splits.end());
  std::vector<int64_t> regions;
  for (int rank : ranks) regions.push_back(entry.sizes.at(2 + static_cast<size_t>(rank)));
  newest_epoch_ = std::max(newest_epoch_, epoch);
  parts_.submissions->Register(id, ranks);
  parts_.log.Info([&] { return "process set " + std::to_string(id) + " is made: ranks " + ListOfRanks(ranks); });
  if (std::binary_search(ranks.begin(), ranks.end(), parts_.identity.rank)) {
    auto membership = std::make_unique<Membership>(id, epoch, ranks, regions, around_, &services_);
    const ProcessSet& set = membership->set;
    ExpectMembers(set);
    const Tuning current = tuned_.Load();
    membership->applier.UseChunks(static_cast<size_t>(current.chunk_bytes));
    if (parts_.settings.autotune && membership->leader) membership->leader->coordinator().Tune(current);
    if (parts_.foreign) PutGroupJob(parts_.foreign, OpKind::kAddProcessSet, epoch, ranks);
    Membership& added = *(sets_[id] = std::move(membership));
    for (int rank : ranks) {  // members whose leave notice came before we knew the set
      if (departures_.departed(rank)) PartFrom(added, rank);
    }
  } else {
    foreign_[id] = ranks;
  }
  set_count_.store(sets_.size() + foreign_.size(), kRelaxed);
  if (operation) {
    operation->handle->value = id;
    Finish(std::move(operation), Status::Ok());
  }
  std::deque<std::pair<int, std::string>> early;
  early.swap(early_);
  for (const auto& [from, message] : early) OnMessage(from, message);
}

void Engine::RemoveSet(MemberState& global, const Entry& entry) {
  auto operation = global.pending().Take(entry.request.name);
  const int id = static_cast<int>(entry.request.splits.at(0));
  auto set = sets_.find(id);
  if (set != sets_.end()) {
    FailAll(*set->second, Status::Invalid("its process set was removed"));
    // The region can be reused: a rank posts into a new region only after all ranks, having applied this removal, have
    // asked to add a set.
    if (parts_.arena) parts_.arena->Free(set->second->set.region());
    if (parts_.foreign) {
      const ProcessSet& gone = set->second->set;
      PutGroupJob(parts_.foreign, OpKind::kRemoveProcessSet, gone.epoch(), gone.ranks());
    }
    ready_.erase(id);
    launches_.Forget(id);
    set->second->set.LeaveDeviceLater(Clock::now() + kLeaveDevice);
    sets_.erase(set);
  }
  foreign_.erase(id);
  set_count_.store(sets_.size() + foreign_.size(), kRelaxed);
  parts_.submissions->Unregister(id);
  parts_.log.Info([&] { return "process set " + std::to_string(id) + " is removed"; });
  if (operation) Finish(std::move(operation), Status::Ok());
}

}  // namespace hvd
