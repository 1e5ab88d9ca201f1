// SPDX-License-Identifier: Apache-2.0
// Turns tensors that are ready on all members into records: validates them, assigns cache slots and fuses them.
#include <utility>

#include "agreement/coordinator_state.h"
#include "agreement/validate.h"

namespace hvd {

void Coordinator::State::AppendTuning(std::vector<Record>* out) {
  options.fusion_threshold = static_cast<size_t>(tuning->fusion_threshold);
  Append(out, RecordKind::kTune).tuning = *tuning;
  tuning.reset();
}

// Append the batch of one cached tensor. Callers that wait for one small tensor after another need this path to be
// fast, so nothing is compared or planned.
void Coordinator::State::AppendKnown(std::vector<Record>* out) {
  Tensor* tensor = ready[0];
  ready.clear();
  Entry& entry = Append(out, RecordKind::kBatch).entries.emplace_back();
  entry.slot = tensor->slot;
  entry.cached = true;
  entry.direct = MayBeDirect(*tensor);
  table.Release(tensor);
}

// Accept the ready tensors, unit by unit, because a group fails as a whole.
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
  devices.Settle(&tensor->reports);
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

// Assign cache slots. Evictions are published before the batches with new slots, so that members, which apply the log
// in order, have equal slots after each record and never more than the capacity.
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
    if (items.back().key.direct) items.back().bytes = items.back().direct_bytes;
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

std::vector<Record> Coordinator::Decide() {
  std::vector<Record> out;
  if (!state_->HasWork()) return out;
  if (state_->tuning) state_->AppendTuning(&out);
  if (!state_->turns.empty()) {
    Record& record = state_->Append(&out, RecordKind::kTurns);
    record.turns = std::exchange(state_->turns, {});
  }
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

}  // namespace hvd
