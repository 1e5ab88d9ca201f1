// SPDX-License-Identifier: Apache-2.0
// The tensors that a member knows by the slots which the leader gave them. All members have the same ones in the same
// slots, since they follow from the log. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "agreement/message.h"

namespace hvd {

class EntryCache {
 public:
  // Null: there is no such slot, or no slot for the name.
  const Entry* Find(uint32_t slot) const {
    const auto found = by_slot_.find(slot);
    return found == by_slot_.end() ? nullptr : found->second.get();
  }
  const Entry* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  // To be kept for longer than the slot may last.
  std::shared_ptr<const Entry> Share(uint32_t slot) const {
    const auto found = by_slot_.find(slot);
    return found == by_slot_.end() ? nullptr : found->second;
  }

  size_t size() const { return by_slot_.size(); }

  // Under entry.slot, in the place of what had that slot. A name means its latest slot.
  void Put(Entry entry) {
    Evict(entry.slot);
    auto known = std::make_shared<const Entry>(std::move(entry));
    by_name_.erase(known->request.name);  // the key lies in an older entry
    by_name_.emplace(known->request.name, known.get());
    by_slot_[known->slot] = std::move(known);
  }
  void Evict(uint32_t slot) {
    ForgetName(slot);
    by_slot_.erase(slot);
  }
  // Nobody comes to the slot by the tensor's name any more.
  void ForgetName(uint32_t slot) {
    const auto known = by_slot_.find(slot);
    if (known == by_slot_.end()) return;
    const auto named = by_name_.find(known->second->request.name);
    if (named != by_name_.end() && named->second == known->second.get()) by_name_.erase(named);
  }

 private:
  std::unordered_map<uint32_t, std::shared_ptr<const Entry>> by_slot_;
  std::unordered_map<std::string_view, const Entry*> by_name_;  // the keys lie in the entries
};

}  // namespace hvd
