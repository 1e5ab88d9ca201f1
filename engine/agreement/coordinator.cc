// SPDX-License-Identifier: Apache-2.0
// Counts reports until a tensor (or its whole group) is ready on all members, or fails.
#include "agreement/coordinator.h"

#include <algorithm>
#include <utility>

#include "agreement/coordinator_state.h"
#include "agreement/spoken.h"
#include "agreement/validate.h"

namespace hvd {

void Coordinator::State::Report(Tensor* tensor, size_t member, const Request& request) {
  if (tensor->reported[member]) return;
  tensor->reported[member] = 1;
  ++tensor->count;
  ++heard[member];
  tensor->reports.Add(member, request);
  AfterReport(tensor, request.kind);
}

void Coordinator::State::AfterReport(Tensor* tensor, OpKind kind) {
  if (NeedsDeparted(*tensor)) {
    Fail(*tensor, Departure(*tensor));
  } else if (kind != OpKind::kAllreduce && NeedsJoined(*tensor)) {
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
  if (++last_unit == 0) ++last_unit;  // skip 0, which means "no group"
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
  if (!departed.empty()) return FailJoin(DepartureOfJoin());
  // Keep names instead of pointers, because failing one tensor may delete others of its group.
  std::vector<std::string> names;
  for (const Tensor* tensor : table.Waiting()) names.push_back(tensor->name);
  for (const std::string& name : names) {
    Tensor* tensor = table.Find(name);
    if (!tensor || !tensor->waiting || tensor->queued) continue;
    AfterReport(tensor, tensor->Agreed().kind);
  }
}

void Coordinator::State::Depart(size_t member) {
  if (std::find(departed.begin(), departed.end(), member) != departed.end()) return;
  departed.push_back(member);
  std::vector<std::string> names;
  for (const Tensor* tensor : table.Waiting()) names.push_back(tensor->name);
  for (const std::string& name : names) {
    const Tensor* tensor = table.Find(name);
    if (tensor && tensor->waiting && NeedsDeparted(*tensor)) Fail(*tensor, Departure(*tensor));
  }
  if (joined_count > 0) FailJoin(DepartureOfJoin());
}

// Return true if the tensor still needs a member that has left. A member that has sent its part to all members is not
// needed any more: it may have its result, and have left or joined, before the last part reached the leader. But it
// cannot take part in anything that needs the leader's decision.
bool Coordinator::State::NeedsDeparted(const Tensor& tensor) const {
  if (departed.empty()) return false;
  return !IsToldToAll(tensor) ||
         std::any_of(departed.begin(), departed.end(), [&](size_t member) { return !tensor.reported[member]; });
}

bool Coordinator::State::NeedsJoined(const Tensor& tensor) const {
  if (joined_count == 0) return false;
  if (!IsToldToAll(tensor)) return true;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (joined[member] && !tensor.reported[member]) return true;
  }
  return false;
}

Status Coordinator::State::Departure(const Tensor& tensor) const {
  std::vector<int> callers;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (tensor.reported[member]) callers.push_back(ranks[member]);
  }
  const auto missing = [&](size_t member) { return !tensor.reported[member]; };
  const auto first = std::find_if(departed.begin(), departed.end(), missing);
  return Departed(ranks[first == departed.end() ? departed[0] : *first], callers, SpokenCall(tensor.Agreed()));
}

Status Coordinator::State::DepartureOfJoin() const {
  std::vector<int> callers;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (joined[member]) callers.push_back(ranks[member]);
  }
  return Departed(ranks[departed[0]], callers, SpokenCall(join_request));
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

// Fail the tensors of all groups into which members have put the tensor, because none of these groups can complete.
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
  std::vector<std::string> names;  // names instead of pointers, because failing one tensor may delete others
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
void Coordinator::Give(const Turn& turn) { state_->turns.push_back(turn); }

}  // namespace hvd
