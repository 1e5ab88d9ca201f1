// SPDX-License-Identifier: Apache-2.0
// Cache slots, their eviction by least recent use, and the descriptions of evicted slots.
#include "agreement/tensor_table.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// Limit for remembered evictions. A member that reports a slot evicted n evictions ago had at least n tensors under way
// then, because its reports arrive in order and each eviction took a tensor that it had reported. So many tensors are
// never under way at once. Without a limit, members that only submit new names would keep everything, because they
// never report what they have seen.
constexpr size_t kMaxForgotten = size_t{1} << 16;

}  // namespace

TensorTable::TensorTable(size_t members, size_t cache_capacity)
    : members_(members), capacity_(cache_capacity), seen_(members) {}

Tensor* TensorTable::Find(std::string_view name) {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.get();
}

const Reports* TensorTable::FindForgotten(uint32_t slot) const {
  const auto found = forgotten_.find(slot);
  return found == forgotten_.end() ? nullptr : &found->second;
}

Tensor& TensorTable::AwaitInFull(const std::string& name) {
  Tensor* tensor = Find(name);
  if (!tensor) {
    auto fresh = std::make_unique<Tensor>(name, members_);
    tensor = fresh.get();
    tensors_.emplace(std::string_view(tensor->name), std::move(fresh));
    tensor->place = idle_.insert(idle_.end(), tensor);
  }
  if (!tensor->waiting) Await(tensor);
  if (!tensor->by_slot) return *tensor;
  // A member describes in full what others reported by slot. Compare all reports in full from here on.
  for (size_t member = 0; member < members_; ++member) {
    if (tensor->reported[member]) tensor->reports.Add(member, tensor->cached.Of(member));
  }
  tensor->by_slot = false;
  return *tensor;
}

void TensorTable::Release(Tensor* tensor) {
  if (tensor->slot == kNoSlot) {
    waiting_.erase(tensor->place);
    tensors_.erase(tensor->name);
    return;
  }
  idle_.splice(idle_.begin(), waiting_, tensor->place);
  tensor->waiting = tensor->complete = tensor->queued = false;
  tensor->unit = 0;
  tensor->count = tensor->express = 0;
  std::fill(tensor->reported.begin(), tensor->reported.end(), uint8_t{0});
  if (tensor->by_slot) {
    tensor->by_slot = false;
  } else {
    tensor->reports.Clear();
    tensor->sizes.clear();
  }
}

void TensorTable::Remember(Tensor* tensor, uint64_t sequence, std::vector<uint32_t>* evicted) {
  if (tensor->slot != kNoSlot) Forget(tensor, sequence, evicted);
  if (capacity_ == 0 || next_slot_ == kNoSlot) return;
  if (slots_.size() >= capacity_) {
    if (idle_.empty()) return;
    Tensor* const least_used = idle_.back();
    Forget(least_used, sequence, evicted);
    idle_.pop_back();
    tensors_.erase(least_used->name);
  }
  tensor->slot = next_slot_++;
  tensor->reports.FillSilent();
  std::swap(tensor->cached, tensor->reports);
  slots_.emplace(tensor->slot, tensor);
}

void TensorTable::Forget(Tensor* tensor, uint64_t sequence, std::vector<uint32_t>* evicted) {
  PruneForgotten();
  evicted->push_back(tensor->slot);
  forgotten_.emplace(tensor->slot, std::exchange(tensor->cached, Reports(members_)));
  forgotten_order_.push_back({sequence, tensor->slot});
  slots_.erase(tensor->slot);
  tensor->slot = kNoSlot;
}

void TensorTable::PruneForgotten() {
  if (forgotten_order_.empty()) return;
  const uint64_t seen_by_all = *std::min_element(seen_.begin(), seen_.end());
  while (!forgotten_order_.empty() &&
         (forgotten_order_.front().sequence <= seen_by_all || forgotten_order_.size() >= kMaxForgotten)) {
    forgotten_.erase(forgotten_order_.front().slot);
    forgotten_order_.pop_front();
  }
}

}  // namespace hvd
