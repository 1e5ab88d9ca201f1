// SPDX-License-Identifier: Apache-2.0
#include "core/set_registry.h"

#include <algorithm>
#include <chrono>

#include "base/rank_list.h"
#include "core/foreign_execution.h"

namespace hvd {
namespace {

// Longest wait before memory on a device is freed although a peer may still read it.
constexpr std::chrono::seconds kLeaveDevice(2);

}  // namespace

void SetRegistry::AddGlobal(const std::vector<int>& ranks, const std::vector<int64_t>& regions) {
  submissions_.Register(kGlobalSet, ranks);
  sets_[kGlobalSet] = std::make_unique<Membership>(kGlobalSet, 0, ranks, regions, around_, &services_);
  ExpectMembers(sets_[kGlobalSet]->set);
}

void SetRegistry::ReserveRegion(Request* request) const {
  std::vector<int64_t>& ranks = request->splits;
  const bool member = std::find(ranks.begin(), ranks.end(), around_.rank) != ranks.end();
  const size_t bytes = ProcessSet::RegionBytes(*around_.settings, static_cast<int>(ranks.size()));
  Status status;
  // If there is no room, this set uses sockets; that is not an error.
  const int64_t region = around_.arena && member ? around_.arena->Reserve(bytes, &status) : -1;
  ranks.insert(ranks.begin(), region);
}

Membership* SetRegistry::Add(const Entry& entry) {
  const int id = static_cast<int>(entry.sizes.at(0));
  const uint32_t epoch = static_cast<uint32_t>(entry.sizes.at(1));
  const std::vector<int> ranks(entry.request.splits.begin() + 1, entry.request.splits.end());
  std::vector<int64_t> regions;
  for (int rank : ranks) regions.push_back(entry.sizes.at(2 + static_cast<size_t>(rank)));
  newest_epoch_ = std::max(newest_epoch_, epoch);
  submissions_.Register(id, ranks);
  services_.log.Info([&] { return "process set " + std::to_string(id) + " is made: ranks " + ListOfRanks(ranks); });
  Membership* added = nullptr;
  if (std::binary_search(ranks.begin(), ranks.end(), around_.rank)) {
    auto membership = std::make_unique<Membership>(id, epoch, ranks, regions, around_, &services_);
    added = membership.get();
    ExpectMembers(added->set);
    const Tuning current = tuned_.Load();
    added->applier.UseChunks(static_cast<size_t>(current.chunk_bytes));
    if (around_.settings->autotune && added->leader) added->leader->coordinator().Tune(current);
    if (around_.foreign) PutGroupJob(around_.foreign, OpKind::kAddProcessSet, epoch, ranks);
    sets_[id] = std::move(membership);
  } else {
    others_.insert(id);
  }
  Count();
  return added;
}

void SetRegistry::Remove(const Entry& entry) {
  const int id = static_cast<int>(entry.request.splits.at(0));
  if (Membership* const membership = Find(id)) {
    ProcessSet& set = membership->set;
    membership->Fail(Status::Invalid("its process set was removed"));
    // The region can be reused: a rank posts into a new region only after all ranks, having applied this removal, have
    // asked to add a set.
    if (around_.arena) around_.arena->Free(set.region());
    if (around_.foreign) PutGroupJob(around_.foreign, OpKind::kRemoveProcessSet, set.epoch(), set.ranks());
    around_.launches->Forget(id);
    set.LeaveDeviceLater(std::chrono::steady_clock::now() + kLeaveDevice);
    sets_.erase(id);
  }
  others_.erase(id);
  Count();
  submissions_.Unregister(id);
  services_.log.Info([&] { return "process set " + std::to_string(id) + " is removed"; });
}

void SetRegistry::Tune(const Tuning& tuning) {
  tuned_.Store(tuning);
  for (auto& [id, membership] : sets_) {
    if (id != kGlobalSet && membership->leader) membership->leader->coordinator().Tune(tuning);
  }
}

// Expect connections to the members that this rank exchanges messages with. Both ends expect a link, even if only one
// of them sends: a rank that leaves sends its leave notice on all of its links and waits until they are connected.
void SetRegistry::ExpectMembers(const ProcessSet& set) {
  const std::vector<int>& ranks = set.ranks();
  Mailbox& mailbox = *services_.mailbox;
  if (set.tree().parent >= 0) mailbox.Expect(ranks[set.tree().parent], true);
  for (int child : set.tree().children) mailbox.Expect(ranks[child], true);
  for (const std::vector<int>* others : {&set.relays().Tellers(), &set.relays().Hearers()}) {
    for (int other : *others) {
      if (!services_.departures->meant_to_leave(ranks[other])) mailbox.Expect(ranks[other], false);
    }
  }
}

std::pair<Membership*, const Operation*> SetRegistry::FindPending(const Handle& handle) const {
  for (const auto& [id, membership] : sets_) {
    const Operation* found = nullptr;
    membership->state.pending().Any([&](const Operation& operation) {
      if (operation.handle.get() == &handle) found = &operation;
      return found != nullptr;
    });
    if (found) return {membership.get(), found};
  }
  return {nullptr, nullptr};
}

bool SetRegistry::AllAnnounced() const {
  const auto postpones = [](const auto& item) { return item.second->express.has_postponed(); };
  return submissions_.empty() && std::none_of(sets_.begin(), sets_.end(), postpones);
}

}  // namespace hvd
