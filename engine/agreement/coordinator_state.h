// SPDX-License-Identifier: Apache-2.0
// State of a coordinator and its steps. Counting reports and failing tensors are in coordinator.cc, deciding is in
// decisions.cc. Only these two files use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agreement/coordinator.h"
#include "agreement/device_names.h"
#include "agreement/fusion.h"
#include "agreement/tensor_table.h"

namespace hvd {

// Allocates ids of process sets. An id is reused once its set is removed; a set's epoch is never reused.
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
  std::vector<bool> used_ = {true};  // id 0 is the global set
  int64_t epoch_ = 0;
};

struct Coordinator::State {
  State(std::vector<int> set_members, CoordinatorOptions set_options)
      : ranks(std::move(set_members)),
        options(set_options),
        table(ranks.size(), options.cache_capacity),
        joined(ranks.size()),
        heard(ranks.size()) {}

  // Tensors submitted as one unit: none starts before all are complete.
  struct Group {
    uint32_t size = 0;
    std::vector<Tensor*> complete;
  };

  // ---- counting reports
  void Report(Tensor* tensor, size_t member, const Request& request);
  void AfterReport(Tensor* tensor, OpKind kind);
  bool IsComplete(const Tensor& tensor) const;
  void Complete(Tensor* tensor);
  void CompleteInGroup(Tensor* tensor, const Request& agreed);
  void Join(size_t member, const Request& request);
  void Depart(size_t member);
  bool NeedsDeparted(const Tensor& tensor) const;
  bool NeedsJoined(const Tensor& tensor) const;
  // Return true if all members that have reported the tensor so far have sent their parts to all members.
  static bool IsToldToAll(const Tensor& tensor) { return tensor.by_slot && tensor.express == tensor.count; }

  // ---- failing tensors
  void Fail(const Tensor& tensor, Status error);
  void FailGroupOf(const Tensor& tensor, std::vector<std::string>* names);
  void FailJoin(Status error);
  Status Departure(const Tensor& tensor) const;
  Status DepartureOfJoin() const;
  bool Misses(const Tensor& tensor, size_t member) const { return !tensor.reported[member] && !joined[member]; }
  void Drop(Tensor* tensor, std::vector<std::string>* names);
  int FirstJoinedRank() const;

  // ---- deciding
  bool IsOneKnownTensor() const { return ready.size() == 1 && ready[0]->by_slot && errors.empty(); }
  void AppendKnown(std::vector<Record>* out);
  // A tensor is reduced in place only while no rank has joined, because a joined rank contributes zeros instead of the
  // memory that it named in an earlier step.
  bool MayBeDirect(const Tensor& tensor) const { return tensor.fusion.key.direct && joined_count == 0; }
  bool HasWork() const {
    return !ready.empty() || !errors.empty() || joined_count == ranks.size() || tuning || !turns.empty();
  }
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
  DeviceNames devices;
  std::unordered_map<std::string, Group> groups;
  std::vector<Tensor*> ready;    // tensors in the order in which they became ready; those of a group are adjacent
  std::vector<Record> errors;    // errors to publish, without sequence numbers
  std::optional<Tuning> tuning;  // tuning to publish
  std::vector<Turn> turns;       // launch slots to publish
  uint64_t sequence = 0;
  uint32_t last_unit = 0;
  ProcessSetIds process_sets;

  std::vector<uint8_t> joined;  // members that have joined
  size_t joined_count = 0;
  int last_joined_rank = -1;
  Request join_request;
  std::vector<size_t> departed;  // members that have left, in the order in which the leader learned of it
  std::vector<uint64_t> heard;   // number of counted reports, by member

  // Reused by every decision, so that a cached tensor costs no allocation except for its record.
  FusionPlanner planner;
  std::vector<Tensor*> accepted;
  std::vector<FusionItem> items;
  std::vector<uint32_t> evicted;
};

}  // namespace hvd
