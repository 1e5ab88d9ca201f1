// SPDX-License-Identifier: Apache-2.0
// Every tensor the leader of a set knows: those that wait for members and those it remembers (the response cache).
// One object serves both, so that a cached tensor costs no allocation when it comes round again.
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

  // While it waits.
  bool waiting = false;
  bool by_slot = false;           // every report so far came by `slot`; then `reports` stays empty and `cached` speaks
  bool complete = false;          // all that must report have reported
  bool queued = false;            // complete, and so is its group: the next decision takes it
  uint32_t unit = 0;              // number of its group while queued, 0 for a tensor of its own
  size_t count = 0;               // members that reported
  size_t express = 0;             // those of them that sent their part to all
  std::vector<uint8_t> reported;  // by member
  Reports reports;
  std::vector<int64_t> sizes;  // of the entry, known once validated

  // While it is remembered.
  uint32_t slot = kNoSlot;
  Reports cached;
  FusionItem fusion;

  std::list<Tensor*>::iterator place;  // among those that wait, or those that are only remembered

  // The description that stands for all; before validation: the first member's.
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
  // The description of an evicted slot, as long as some member may not have heard of the eviction.
  const Reports* FindForgotten(uint32_t slot) const;

  // The tensor of that name, made when unknown; it waits from now on, to be described in full by every member.
  Tensor& AwaitInFull(const std::string& name);
  // It waits from now on; if it did not yet, members may report it by its slot.
  void AwaitBySlot(Tensor* tensor) {
    if (tensor->waiting) return;
    tensor->by_slot = true;
    Await(tensor);
  }
  // It waits no longer; it is deleted unless it has a slot.
  void Release(Tensor* tensor);

  // Gives a fresh slot to a tensor whose reports agree. Slots that must go for it, its own former one included, are
  // appended to `evicted`; the record that says so will have `sequence`. Without room (every other slot belongs to a
  // tensor that waits) the tensor stays without a slot.
  void Remember(Tensor* tensor, uint64_t sequence, std::vector<uint32_t>* evicted);
  // All that is known about what a member has applied.
  void Seen(size_t member, uint64_t sequence) {
    if (sequence > seen_[member]) seen_[member] = sequence;
  }

  // In the order of first reports.
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
  std::unordered_map<std::string_view, std::unique_ptr<Tensor>> tensors_;  // keys live in the tensors
  std::unordered_map<uint32_t, Tensor*> slots_;
  std::list<Tensor*> waiting_;  // in the order of first reports
  std::list<Tensor*> idle_;     // all others, which have slots: last used first
  std::unordered_map<uint32_t, Reports> forgotten_;
  std::deque<Forgotten> forgotten_order_;
  std::vector<uint64_t> seen_;
};

}  // namespace hvd
