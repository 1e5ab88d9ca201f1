// SPDX-License-Identifier: Apache-2.0
// Counts reports until a tensor (or its whole group) is ready everywhere, then turns ready tensors into records.
#include "agreement/coordinator.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "agreement/fusion.h"
#include "agreement/spoken.h"
#include "agreement/tensor_table.h"
#include "agreement/validate.h"

namespace hvd {
namespace {

// Tensors submitted as one unit: none starts before all are complete.
struct Group {
  uint32_t size = 0;
  std::vector<Tensor*> complete;
};

// Ids of process sets. They are reused, so each set also has an epoch that is not.
class ProcessSetIds {
 public:
  int64_t Add() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const auto id = free - used_.begin();
    if (free == used_.end()) used_.push_back(false);
    used_[static_cast<size_t>(id)] = true;
    ++epoch_;
    return id;
  }
  bool Remove(int64_t id) {
    if (id <= 0 || id >= static_cast<int64_t>(used_.size()) || !used_[static_cast<size_t>(id)]) return false;
    used_[static_cast<size_t>(id)] = false;
    return true;
  }
  int64_t epoch() const { return epoch_; }

 private:
  std::vector<bool> used_ = {true};  // 0 is the global set
  int64_t epoch_ = 0;
};

}  // namespace

struct Coordinator::State {
  State(std::vector<int> set_members, CoordinatorOptions set_options)
      : ranks(std::move(set_members)),
        options(set_options),
        table(ranks.size(), options.cache_capacity),
        joined(ranks.size()),
        heard(ranks.size()) {}

  // Hearing.
  void Report(Tensor* tensor, size_t member, const Request& request);
  void AfterReport(Tensor* tensor, OpKind kind);
  bool IsComplete(const Tensor& tensor) const;
  void Complete(Tensor* tensor);
  void CompleteInGroup(Tensor* tensor, const Request& agreed);
  void Join(size_t member, const Request& request);
  void Depart(size_t member);

  // Failing.
  void Fail(const Tensor& tensor, Status error);
  void FailGroupOf(const Tensor& tensor, std::vector<std::string>* names);
  void FailJoin(Status error);
  Status Departure(const Tensor& tensor) const;
  Status DepartureOfJoin() const;
  bool Misses(const Tensor& tensor, size_t member) const { return !tensor.reported[member] && !joined[member]; }
  void Drop(Tensor* tensor, std::vector<std::string>* names);
  int FirstJoinedRank() const;

  // Deciding.
  bool IsOneKnownTensor() const { return ready.size() == 1 && ready[0]->by_slot && errors.empty(); }
  void AppendKnown(std::vector<Record>* out);
  // A rank that has joined takes part with zeros, not with the memory it once named.
  bool MayBeDirect(const Tensor& tensor) const { return tensor.fusion.key.direct && joined_count == 0; }
  bool HasWork() const { return !ready.empty() || !errors.empty() || joined_count == ranks.size() || tuning; }
  void AppendTuning(std::vector<Record>* out);
  void AcceptReady();
  Status Accept(Tensor* tensor);
  Status AcceptProcessSet(Tensor* tensor);
  void AssignSlots(std::vector<Record>* out);
  void AppendBatches(std::vector<Record>* out);
  void AppendJoin(std::vector<Record>* out);
  Record& Append(std::vector<Record>* out, RecordKind kind) {
    Record& record = out->emplace_back();
    record.kind = kind;
    record.sequence = ++sequence;
    return record;
  }

  const std::vector<int> ranks;
  CoordinatorOptions options;
  TensorTable table;
  std::unordered_map<std::string, Group> groups;
  std::vector<Tensor*> ready;    // in the order in which they became ready; a group's tensors are neighbours
  std::vector<Record> errors;    // to be published; without sequence yet
  std::optional<Tuning> tuning;  // to be published
  uint64_t sequence = 0;
  uint32_t last_unit = 0;
  ProcessSetIds process_sets;

  std::vector<uint8_t> joined;  // by member
  size_t joined_count = 0;
  int last_joined_rank = -1;
  Request join_request;
  int departed_rank = -1;
  std::vector<uint64_t> heard;  // by member: its reports

  // Reused by every decision, so that a cached tensor costs no allocation except its record.
  FusionPlanner planner;
  std::vector<Tensor*> accepted;
  std::vector<FusionItem> items;
  std::vector<uint32_t> evicted;
};

void Coordinator::State::Report(Tensor* tensor, size_t member, const Request& request) {
  if (tensor->reported[member]) return;
  tensor->reported[member] = 1;
  ++tensor->count;
  ++heard[member];
  tensor->reports.Add(member, request);
  AfterReport(tensor, request.kind);
}

void Coordinator::State::AfterReport(Tensor* tensor, OpKind kind) {
  if (departed_rank >= 0) {
    Fail(*tensor, Departure(*tensor));
  } else if (joined_count > 0 && kind != OpKind::kAllreduce) {
    Fail(*tensor, NotWhileJoined(kind, tensor->name, FirstJoinedRank()));
  } else if (!tensor->complete && IsComplete(*tensor)) {
    Complete(tensor);
  }
}

bool Coordinator::State::IsComplete(const Tensor& tensor) const {
  if (tensor.count == ranks.size()) return true;
  if (joined_count == 0) return false;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (!tensor.reported[member] && !joined[member]) return false;
  }
  return true;
}

void Coordinator::State::Complete(Tensor* tensor) {
  if (tensor->by_slot && tensor->express == ranks.size()) return table.Release(tensor);
  tensor->complete = true;
  if (!tensor->by_slot) {
    if (Status status = ValidateGroup(tensor->reports, ranks); !status.ok()) return Fail(*tensor, status);
  }
  const Request& agreed = tensor->Agreed();
  if (!agreed.group.empty()) return CompleteInGroup(tensor, agreed);
  tensor->queued = true;
  ready.push_back(tensor);
}

void Coordinator::State::CompleteInGroup(Tensor* tensor, const Request& agreed) {
  Group& group = groups[agreed.group];
  if (group.complete.empty()) group.size = agreed.group_size;
  if (group.size != agreed.group_size) {
    return Fail(*tensor, Status::Mismatch("Mismatched groups: group '" + agreed.group + "' has " +
                                          std::to_string(group.size) + " tensors, but " +
                                          std::to_string(agreed.group_size) + " according to '" + tensor->name + "'."));
  }
  group.complete.push_back(tensor);
  if (group.complete.size() < group.size) return;
  if (++last_unit == 0) ++last_unit;  // 0 means "no group"
  for (Tensor* member : group.complete) {
    member->queued = true;
    member->unit = last_unit;
    ready.push_back(member);
  }
  groups.erase(agreed.group);
}

void Coordinator::State::Join(size_t member, const Request& request) {
  if (joined[member]) return;
  joined[member] = 1;
  ++joined_count;
  ++heard[member];
  last_joined_rank = ranks[member];
  join_request = request;
  if (departed_rank >= 0) return FailJoin(DepartureOfJoin());
  // Failing one tensor may delete others of its group, hence names and not pointers.
  std::vector<std::string> names;
  for (const Tensor* tensor : table.Waiting()) names.push_back(tensor->name);
  for (const std::string& name : names) {
    Tensor* tensor = table.Find(name);
    if (!tensor || !tensor->waiting || tensor->queued) continue;
    AfterReport(tensor, tensor->Agreed().kind);
  }
}

void Coordinator::State::Depart(size_t member) {
  if (departed_rank >= 0) return;
  departed_rank = ranks[member];
  std::vector<std::string> names;
  for (const Tensor* tensor : table.Waiting()) names.push_back(tensor->name);
  for (const std::string& name : names) {
    const Tensor* tensor = table.Find(name);
    if (tensor && tensor->waiting) Fail(*tensor, Departure(*tensor));
  }
  if (joined_count > 0) FailJoin(DepartureOfJoin());
}

Status Coordinator::State::Departure(const Tensor& tensor) const {
  std::vector<int> callers;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (tensor.reported[member]) callers.push_back(ranks[member]);
  }
  return Departed(departed_rank, callers, SpokenCall(tensor.Agreed()));
}

Status Coordinator::State::DepartureOfJoin() const {
  std::vector<int> callers;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (joined[member]) callers.push_back(ranks[member]);
  }
  return Departed(departed_rank, callers, SpokenCall(join_request));
}

void Coordinator::State::Fail(const Tensor& tensor, Status error) {
  Record record;
  record.kind = RecordKind::kError;
  record.error = std::move(error);
  const std::string name = tensor.name;
  FailGroupOf(tensor, &record.names);
  if (Tensor* left = table.Find(name); left && left->waiting) Drop(left, &record.names);
  errors.push_back(std::move(record));
}

// Members may have put the tensor into different groups: none of those can complete any more.
void Coordinator::State::FailGroupOf(const Tensor& tensor, std::vector<std::string>* names) {
  std::vector<std::string> doomed;
  const std::vector<Request>& requests = tensor.by_slot ? tensor.cached.distinct() : tensor.reports.distinct();
  for (const Request& request : requests) {
    if (!request.group.empty()) doomed.push_back(request.group);
  }
  if (doomed.empty()) return;
  std::vector<Tensor*> dropped;
  for (Tensor* other : table.Waiting()) {
    if (std::find(doomed.begin(), doomed.end(), other->Agreed().group) != doomed.end()) dropped.push_back(other);
  }
  for (Tensor* other : dropped) Drop(other, names);
  for (const std::string& group : doomed) groups.erase(group);
}

void Coordinator::State::FailJoin(Status error) {
  Record record;
  record.kind = RecordKind::kError;
  record.names = {join_request.name};
  record.error = std::move(error);
  errors.push_back(std::move(record));
  std::fill(joined.begin(), joined.end(), uint8_t{0});
  joined_count = 0;
}

void Coordinator::State::Drop(Tensor* tensor, std::vector<std::string>* names) {
  names->push_back(tensor->name);
  if (tensor->queued) ready.erase(std::remove(ready.begin(), ready.end(), tensor), ready.end());
  table.Release(tensor);
}

int Coordinator::State::FirstJoinedRank() const {
  return ranks[static_cast<size_t>(std::find(joined.begin(), joined.end(), 1) - joined.begin())];
}

void Coordinator::State::AppendTuning(std::vector<Record>* out) {
  options.fusion_threshold = static_cast<size_t>(tuning->fusion_threshold);
  Append(out, RecordKind::kTune).tuning = *tuning;
  tuning.reset();
}

// A caller that blocks on one small tensor after another spends its time here: nothing to compare or to plan.
void Coordinator::State::AppendKnown(std::vector<Record>* out) {
  Tensor* tensor = ready[0];
  ready.clear();
  Entry& entry = Append(out, RecordKind::kBatch).entries.emplace_back();
  entry.slot = tensor->slot;
  entry.cached = true;
  entry.direct = MayBeDirect(*tensor);
  table.Release(tensor);
}

// Takes what is ready, unit by unit: a group fails as a whole.
void Coordinator::State::AcceptReady() {
  for (size_t begin = 0, end = 0; begin < ready.size(); begin = end) {
    const uint32_t unit = ready[begin]->unit;
    Status status;
    for (end = begin; end < ready.size() && (end == begin || (unit != 0 && ready[end]->unit == unit)); ++end) {
      if (status.ok() && !ready[end]->by_slot) status = Accept(ready[end]);
    }
    if (status.ok()) {
      accepted.insert(accepted.end(), ready.begin() + static_cast<std::ptrdiff_t>(begin),
                      ready.begin() + static_cast<std::ptrdiff_t>(end));
      continue;
    }
    Record record;
    record.kind = RecordKind::kError;
    record.error = std::move(status);
    for (size_t i = begin; i < end; ++i) {
      record.names.push_back(ready[i]->name);
      table.Release(ready[i]);
    }
    errors.push_back(std::move(record));
  }
  ready.clear();
}

Status Coordinator::State::Accept(Tensor* tensor) {
  Status status = Validate(tensor->reports, ranks);
  if (!status.ok()) return status;
  const OpKind kind = tensor->reports.First().kind;
  if (kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet) return AcceptProcessSet(tensor);
  tensor->sizes = SizesOf(tensor->reports);
  return Status::Ok();
}

Status Coordinator::State::AcceptProcessSet(Tensor* tensor) {
  const Request& agreed = tensor->reports.First();
  if (agreed.kind == OpKind::kRemoveProcessSet) {
    const int64_t id = agreed.splits[0];
    return process_sets.Remove(id) ? Status::Ok() : UnknownProcessSet(tensor->name, id);
  }
  const int64_t id = process_sets.Add();
  tensor->sizes = {id, process_sets.epoch()};
  for (size_t member = 0; member < ranks.size(); ++member) {
    tensor->sizes.push_back(tensor->reports.Of(member).splits[0]);
  }
  return Status::Ok();
}

// Slots that go are published before the batches that bring new ones, so that members which apply the log in order
// hold the same slots after each record and never more than the capacity.
void Coordinator::State::AssignSlots(std::vector<Record>* out) {
  for (Tensor* tensor : accepted) {
    if (tensor->by_slot) continue;
    tensor->fusion = FusionItemOf(tensor->reports);
    tensor->fusion.key.algorithm = ChooseAlgorithm(options.hosts, tensor->reports.First(), options.algorithms);
    if (MovesTensor(tensor->fusion.key.kind) && !tensor->reports.First().IsNumbered())
      table.Remember(tensor, sequence + 1, &evicted);
  }
  if (evicted.empty()) return;
  Append(out, RecordKind::kEvict).evicted.swap(evicted);
}

void Coordinator::State::AppendBatches(std::vector<Record>* out) {
  for (const Tensor* tensor : accepted) {
    items.push_back(tensor->fusion);
    items.back().group = tensor->unit;
    items.back().key.direct = MayBeDirect(*tensor);
  }
  const std::vector<uint32_t>& batch_of = planner.Plan(items, {options.fusion_threshold, options.disable_group_fusion});
  const size_t first_batch = out->size();
  out->reserve(first_batch + planner.counts().size());
  for (uint32_t count : planner.counts()) Append(out, RecordKind::kBatch).entries.reserve(count);
  for (size_t i = 0; i < accepted.size(); ++i) {
    Tensor* tensor = accepted[i];
    Entry& entry = (*out)[first_batch + batch_of[i]].entries.emplace_back();
    entry.slot = tensor->slot;
    entry.cached = tensor->by_slot;
    entry.direct = MayBeDirect(*tensor);
    if (!tensor->by_slot) {
      entry.request = tensor->Agreed();
      entry.sizes = std::move(tensor->sizes);
      entry.algorithm = tensor->fusion.key.algorithm;
    }
    table.Release(tensor);
  }
  accepted.clear();
  items.clear();
}

void Coordinator::State::AppendJoin(std::vector<Record>* out) {
  Entry& entry = Append(out, RecordKind::kBatch).entries.emplace_back();
  entry.request = join_request;
  entry.sizes = {last_joined_rank};
  std::fill(joined.begin(), joined.end(), uint8_t{0});
  joined_count = 0;
}

Coordinator::Coordinator(std::vector<int> members, CoordinatorOptions options)
    : state_(std::make_unique<State>(std::move(members), options)) {}

Coordinator::~Coordinator() = default;

void Coordinator::OnRequest(int member, const Request& request) {
  const auto index = static_cast<size_t>(member);
  if (request.kind == OpKind::kJoin) return state_->Join(index, request);
  Tensor& tensor = state_->table.AwaitInFull(request.name);
  state_->Report(&tensor, index, request);
}

void Coordinator::OnReady(int member, uint32_t slot, uint64_t seen, bool express) {
  const auto index = static_cast<size_t>(member);
  TensorTable& table = state_->table;
  table.Seen(index, seen);
  Tensor* tensor = table.FindSlot(slot);
  if (!tensor) {
    const Reports* forgotten = table.FindForgotten(slot);
    if (forgotten) return OnRequest(member, forgotten->Of(index));
    Record record;
    record.kind = RecordKind::kError;
    record.error = UnknownSlot(state_->ranks[index], slot);
    state_->errors.push_back(std::move(record));
    return;
  }
  table.AwaitBySlot(tensor);
  if (!tensor->by_slot) return state_->Report(tensor, index, tensor->cached.Of(index));
  if (tensor->reported[index]) return;
  tensor->reported[index] = 1;
  ++tensor->count;
  ++state_->heard[index];
  tensor->express += express;
  state_->AfterReport(tensor, tensor->fusion.key.kind);
}

void Coordinator::OnDeparture(int member) { state_->Depart(static_cast<size_t>(member)); }

std::vector<Record> Coordinator::Decide() {
  std::vector<Record> out;
  if (!state_->HasWork()) return out;
  if (state_->tuning) state_->AppendTuning(&out);
  if (state_->IsOneKnownTensor()) {
    state_->AppendKnown(&out);
  } else {
    state_->AcceptReady();
  }
  for (Record& error : state_->errors) {
    error.sequence = ++state_->sequence;
    out.push_back(std::move(error));
  }
  state_->errors.clear();
  if (!state_->accepted.empty()) {
    state_->AssignSlots(&out);
    state_->AppendBatches(&out);
  }
  if (state_->joined_count == state_->ranks.size()) state_->AppendJoin(&out);
  return out;
}

std::vector<Coordinator::Waiting> Coordinator::Pending() const {
  std::vector<Waiting> pending;
  for (const Tensor* tensor : state_->table.Waiting()) {
    if (tensor->complete) continue;
    Waiting& waiting = pending.emplace_back();
    waiting.name = tensor->name;
    for (size_t member = 0; member < state_->ranks.size(); ++member) {
      if (!tensor->reported[member] && !state_->joined[member]) waiting.missing.push_back(state_->ranks[member]);
    }
  }
  return pending;
}

uint64_t Coordinator::Heard(int member) const { return state_->heard[static_cast<size_t>(member)]; }

void Coordinator::Skip(int member) { ++state_->heard[static_cast<size_t>(member)]; }

std::vector<int> Coordinator::MissingFor(int member, const std::string& name, const std::string& group) const {
  const auto waiting = static_cast<size_t>(member);
  const size_t members = state_->ranks.size();
  std::vector<bool> missing(members);
  if (state_->joined[waiting] && name == state_->join_request.name) {
    for (size_t other = 0; other < members; ++other) missing[other] = !state_->joined[other];
  }
  for (const Tensor* tensor : state_->table.Waiting()) {
    const bool meant = tensor->name == name || (!group.empty() && tensor->Agreed().group == group);
    if (!meant || tensor->complete || !tensor->reported[waiting]) continue;
    for (size_t other = 0; other < members; ++other) {
      if (state_->Misses(*tensor, other)) missing[other] = true;
    }
  }
  std::vector<int> result;
  for (size_t other = 0; other < members; ++other) {
    if (missing[other]) result.push_back(static_cast<int>(other));
  }
  return result;
}

void Coordinator::FailStuck(const std::vector<int>& waiting, const std::vector<int>& stuck, const Status& why) {
  const auto any = [](const std::vector<int>& members, auto holds) {
    return std::any_of(members.begin(), members.end(), [&](int member) { return holds(static_cast<size_t>(member)); });
  };
  std::vector<std::string> names;  // failing one may delete others of its group
  for (const Tensor* tensor : state_->table.Waiting()) {
    if (!tensor->complete && any(waiting, [&](size_t member) { return tensor->reported[member]; }) &&
        any(stuck, [&](size_t member) { return state_->Misses(*tensor, member); })) {
      names.push_back(tensor->name);
    }
  }
  for (const std::string& name : names) {
    const Tensor* tensor = state_->table.Find(name);
    if (tensor && tensor->waiting) state_->Fail(*tensor, why);
  }
  if (any(waiting, [&](size_t member) { return state_->joined[member]; }) &&
      any(stuck, [&](size_t member) { return !state_->joined[member]; })) {
    state_->FailJoin(why);
  }
}

void Coordinator::Tune(const Tuning& tuning) { state_->tuning = tuning; }

}  // namespace hvd
