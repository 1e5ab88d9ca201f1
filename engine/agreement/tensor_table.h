// SPDX-License-Identifier: Apache-2.0
// All tensors that the leader of a set knows: those that wait for members and those in the response cache. One object
// serves both, so that a cached tensor needs no allocation when it is reported again.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agreement/fusion.h"
#include "agreement/reports.h"

namespace hvd {

struct Tensor {
  explicit Tensor(std::string tensor_name, size_t members)
      : name(std::move(tensor_name)), reported(members), reports(members), cached(members) {}

  const std::string name;

  // Fields that are used while the tensor waits for reports.
  bool waiting = false;
  bool by_slot = false;           // all reports so far named `slot`; `reports` is then empty and `cached` is valid
  bool complete = false;          // all required members have reported
  bool queued = false;            // complete, with its whole group: the next decision takes it
  uint32_t unit = 0;              // number of its group while queued, 0 without a group
  size_t count = 0;               // members that have reported
  size_t express = 0;             // members that have sent their part to all members
  std::vector<uint8_t> reported;  // by member: 1 if it has reported
  Reports reports;
  std::vector<int64_t> sizes;  // Entry::sizes, known after validation

  // Fields that are used while the tensor is in the cache.
  uint32_t slot = kNoSlot;
  Reports cached;
  FusionItem fusion;

  std::list<Tensor*>::iterator place;  // position in the list of waiting or of idle tensors

  // Return the description that all agree on; before validation, the first member's.
  const Request& Agreed() const { return reports.empty() ? cached.First() : reports.First(); }
};

class TensorTable {
 public:
  TensorTable(size_t members, size_t cache_capacity);

  Tensor* Find(std::string_view name);
  Tensor* FindSlot(uint32_t slot) {
    const auto found = slots_.find(slot);
    return found == slots_.end() ? nullptr : found->second;
  }
  // Return the description of an evicted slot as long as some member may not have applied the eviction, else null.
  const Reports* FindForgotten(uint32_t slot) const;

  // Return the tensor of that name, created if unknown. It waits from now on until every member has described it in
  // full.
  Tensor& AwaitInFull(const std::string& name);
  // Let a tensor wait. If it did not wait before, members may report it by its slot.
  void AwaitBySlot(Tensor* tensor) {
    if (tensor->waiting) return;
    tensor->by_slot = true;
    Await(tensor);
  }
  // End the wait of a tensor, and delete it unless it has a slot.
  void Release(Tensor* tensor);

  // Assign a new slot to a tensor whose reports agree. Evicted slots, including its own former one, are appended to
  // `evicted`; the record with the evictions will have the number `sequence`. If all other slots belong to waiting
  // tensors, the tensor gets no slot.
  void Remember(Tensor* tensor, uint64_t sequence, std::vector<uint32_t>* evicted);
  // Note the last record that a member is known to have applied.
  void Seen(size_t member, uint64_t sequence) {
    if (sequence > seen_[member]) seen_[member] = sequence;
  }

  // Waiting tensors in the order of their first reports.
  const std::list<Tensor*>& Waiting() const { return waiting_; }

 private:
  struct Forgotten {
    uint64_t sequence;
    uint32_t slot;
  };

  void Await(Tensor* tensor) {
    tensor->waiting = true;
    waiting_.splice(waiting_.end(), idle_, tensor->place);
  }
  void Forget(Tensor* tensor, uint64_t sequence, std::vector<uint32_t>* evicted);
  void PruneForgotten();

  const size_t members_;
  const size_t capacity_;
  uint32_t next_slot_ = 0;
  std::unordered_map<std::string_view, std::unique_ptr<Tensor>> tensors_;  // the keys point into the tensors
  std::unordered_map<uint32_t, Tensor*> slots_;
  std::list<Tensor*> waiting_;  // waiting tensors in the order of their first reports
  std::list<Tensor*> idle_;     // all other tensors, which have slots; the last used first
  std::unordered_map<uint32_t, Reports> forgotten_;
  std::deque<Forgotten> forgotten_order_;
  std::vector<uint64_t> seen_;
};

}  // namespace hvd
