// SPDX-License-Identifier: Apache-2.0
// A set's log as a member applies it: each record in its order, and the batches that follow from it.
#include <algorithm>

#include "agreement/watch.h"
#include "core/engine.h"
#include "core/execution.h"
#include "core/shown.h"

namespace hvd {
namespace {

constexpr size_t kCacheWorthTelling = 256;         // entries; from there on each doubling
constexpr size_t kLargeBatch = size_t{256} << 20;  // in the tensors of all members: more than what caches hold

// Follows from the log alone, so that all members come to the same answer.
bool IsLarge(const Entries& entries, size_t members) {
  if (entries[0]->request.kind != OpKind::kAllreduce) return false;
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry->request.Bytes() * members;
  return bytes >= kLargeBatch;
}

}  // namespace

void Engine::Apply(ProcessSet& set, Record record) {
  if (!aborted_.ok()) return;
  if (record.sequence != set.applied + 1) {
    return Lose(set.ranks()[0], "records of process set " + std::to_string(set.id()) + " came out of order");
  }
  set.applied = record.sequence;
  if (record.kind == RecordKind::kBatch) return ApplyBatch(set, std::move(record.entries));
  if (record.kind == RecordKind::kTune) return ApplyTuning(set, record.tuning);
  if (record.kind == RecordKind::kError) {
    if (record.names.empty()) return Lose(set.ranks()[0], record.error.text);
    return ApplyError(set, record);
  }
  for (uint32_t slot : record.evicted) Evict(set, slot);
}

void Engine::Evict(ProcessSet& set, uint32_t slot) {
  auto known = set.known.find(slot);
  if (known == set.known.end()) return;
  auto named = set.known_by_name.find(known->second->request.name);
  if (named != set.known_by_name.end() && named->second == known->second.get()) set.known_by_name.erase(named);
  set.known.erase(known);
  if (set.express) set.express->Forget(slot);
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

// Every set's chunks change by its own log: a leader that learns of new values passes them on there.
void Engine::ApplyTuning(ProcessSet& set, const Tuning& tuning) {
  set.chunk_bytes = static_cast<size_t>(tuning.chunk_bytes);
  if (set.id() != kGlobalSet) return;
  tuned_.Store(tuning);
  for (auto& [id, other] : sets_) {
    if (id != kGlobalSet && other->leads()) other->coordinator->Tune(tuning);
  }
}

void Engine::ApplyBatch(ProcessSet& set, std::vector<Entry> entries) {
  if (entries.empty()) return;
  const bool placed = entries[0].direct;  // tensors that differ in it are not fused
  Entries agreed;
  agreed.reserve(entries.size());
  for (Entry& entry : entries) {
    if (!entry.cached) {
      agreed.push_back(Learn(set, std::move(entry)));
      continue;
    }
    auto known = set.known.find(entry.slot);
    if (known == set.known.end()) return Lose(set.ranks()[0], "a batch names a cache slot that nobody assigned");
    agreed.push_back(known->second);
    EndRound(set, *known->second);
  }
  if (tuning_ && set.id() == kGlobalSet) {
    if (std::optional<Tuning> next = tuning_->OnBatch(agreed, Clock::now())) {
      set.coordinator->Tune(*next);
      if (next->final) tuning_.reset();
    }
  }
  const Entry& first = *agreed[0];
  switch (first.request.kind) {
    case OpKind::kBarrier:
      if (auto operation = set.pending.Take(first.request.name)) Finish(std::move(operation), Status::Ok());
      return;
    case OpKind::kJoin:
      set.joined = false;
      if (auto operation = set.pending.Take(first.request.name)) {
        operation->handle->value = first.sizes.at(0);
        Finish(std::move(operation), Status::Ok());
      }
      return;
    case OpKind::kAddProcessSet:
      return ApplyAddSet(set, first);
    case OpKind::kRemoveProcessSet:
      return ApplyRemoveSet(set, first);
    default:
      return Start(set, std::move(agreed), placed);
  }
}

// A tensor that is described in full, remembered if the leader gave it a slot.
std::shared_ptr<const Entry> Engine::Learn(ProcessSet& set, Entry entry) {
  if (entry.slot == kNoSlot) return std::make_shared<const Entry>(std::move(entry));
  auto known = std::make_shared<Entry>(entry);
  // What this member asked for is what it will compare its next request with.
  if (const Operation* mine = set.pending.Find(entry.request.name)) known->request = mine->request;
  set.known_by_name.erase(known->request.name);  // a key that lies in what goes
  set.known_by_name.emplace(known->request.name, known.get());
  set.known[known->slot] = std::move(known);
  const size_t count = set.known.size();
  if (count >= kCacheWorthTelling && (count & (count - 1)) == 0) {
    parts_.log.Debug([&] {
      return "the response cache of process set " + std::to_string(set.id()) + " has grown to " +
             std::to_string(count) + " tensors";
    });
  }
  return std::make_shared<const Entry>(std::move(entry));
}

void Engine::Start(ProcessSet& set, Entries entries, bool placed) {
  ProcessSet::Running batch;
  batch.placed = placed;
  batch.operations.reserve(entries.size());
  for (const auto& entry : entries) {
    batch.operations.push_back(set.pending.Take(entry->request.name));
    if (!batch.operations.back() && !set.joined) {
      set.running.push_back(std::move(batch));  // so that what was taken from `pending` fails with the rest
      return Lose(set.ranks()[0], "a batch names '" + entry->request.name + "', which this rank never submitted");
    }
  }
  batch.entries = std::move(entries);
  batch.chunk_bytes = set.chunk_bytes;
  if (Timeline* shown = timeline()) ShowAgreed(shown, set, batch);
  parts_.log.Trace([&] {
    return "process set " + std::to_string(set.id()) + " runs " + std::to_string(batch.entries.size()) +
           " tensors together, the first '" + batch.entries[0]->request.name.substr(0, 200) + "'";
  });
  set.running.push_back(std::move(batch));
}

void Engine::ApplyAddSet(ProcessSet& global, const Entry& entry) {
  auto operation = global.pending.Take(entry.request.name);
  const int id = static_cast<int>(entry.sizes.at(0));
  const uint32_t epoch = static_cast<uint32_t>(entry.sizes.at(1));
  std::vector<int> ranks(entry.request.splits.begin() + 1, entry.request.splits.end());
  std::vector<int64_t> regions;
  for (int rank : ranks) regions.push_back(entry.sizes.at(2 + static_cast<size_t>(rank)));
  newest_epoch_ = std::max(newest_epoch_, epoch);
  parts_.submissions->Register(id, ranks);
  parts_.log.Info([&] { return "process set " + std::to_string(id) + " is made: ranks " + ListOfRanks(ranks); });
  if (std::binary_search(ranks.begin(), ranks.end(), parts_.identity.rank)) {
    auto set = std::make_unique<ProcessSet>(id, epoch, ranks, regions, around_);
    if (set->tree().parent >= 0) mailbox_.Expect(ranks[set->tree().parent], true);
    for (int child : set->tree().children) mailbox_.Expect(ranks[child], true);
    const Tuning current = tuned_.Load();
    set->chunk_bytes = static_cast<size_t>(current.chunk_bytes);
    if (parts_.settings.autotune && set->leads()) set->coordinator->Tune(current);
    sets_[id] = std::move(set);
  } else {
    foreign_[id] = ranks;
  }
  if (operation) {
    operation->handle->value = id;
    Finish(std::move(operation), Status::Ok());
  }
  std::deque<std::pair<int, std::string>> early;
  early.swap(early_);
  for (const auto& [from, message] : early) OnMessage(from, message);
}

void Engine::ApplyRemoveSet(ProcessSet& global, const Entry& entry) {
  auto operation = global.pending.Take(entry.request.name);
  const int id = static_cast<int>(entry.request.splits.at(0));
  auto set = sets_.find(id);
  if (set != sets_.end()) {
    FailAll(*set->second, Status::Invalid("its process set was removed"));
    // Reuse is safe: nobody posts into a new region before everyone, having applied this removal, asked to add a set.
    if (parts_.arena) parts_.arena->Free(set->second->region());
    ready_.erase(id);
    sets_.erase(set);
  }
  foreign_.erase(id);
  parts_.submissions->Unregister(id);
  parts_.log.Info([&] { return "process set " + std::to_string(id) + " is removed"; });
  if (operation) Finish(std::move(operation), Status::Ok());
}

bool Engine::Step(ProcessSet& set) {
  bool moved = set.Pump();
  while (!set.running.empty()) {
    ProcessSet::Running& batch = set.running.front();
    if (!batch.machine && !Prepare(set, &batch)) return true;
    if (Timeline* shown = timeline()) ShowTransfers(shown, set, &batch);
    const Machine::Step step = batch.over ? Machine::Step::kDone : batch.machine->Advance();
    moved |= step != Machine::Step::kStuck && !batch.over;
    if (step != Machine::Step::kDone) break;
    single_copy_batches_ += !batch.over && batch.machine->single_copy();
    batch.over = true;
    if (!set.AllSent()) break;  // what is still to leave may lie in callers' tensors
    for (auto& operation : batch.operations) {
      if (operation) Finish(std::move(operation), Status::Ok());
    }
    set.running.pop_front();
  }
  return moved;
}

// The lanes are free for the batch only now, and so is their chunk size.
bool Engine::Prepare(ProcessSet& set, ProcessSet::Running* batch) {
  set.UseChunks(batch->chunk_bytes, IsLarge(batch->entries, set.ranks().size()));
  const Status status = hvd::Prepare(set, parts_.settings, batch->entries, batch);
  direct_batches_ += batch->direct;
  if (!status.ok()) Lose(parts_.identity.rank, status.text);  // which empties set.running
  return status.ok();
}

}  // namespace hvd
