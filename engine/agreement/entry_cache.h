// SPDX-License-Identifier: Apache-2.0
// The tensors that a member knows by the cache slots that the leader gave them. The contents follow from the log, so
// they are equal on all members. Pure.
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
  // Return null if there is no such slot, or no slot for the name.
  const Entry* Find(uint32_t slot) const {
    const auto found = by_slot_.find(slot);
    return found == by_slot_.end() ? nullptr : found->second.get();
  }
  const Entry* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  // Return a shared entry, for uses that may outlast the slot.
  std::shared_ptr<const Entry> Share(uint32_t slot) const {
    const auto found = by_slot_.find(slot);
    return found == by_slot_.end() ? nullptr : found->second;
  }

  size_t size() const { return by_slot_.size(); }

  // Store the entry under entry.slot, replacing what was there. A name refers to its latest slot.
  void Put(Entry entry) {
    Evict(entry.slot);
    auto known = std::make_shared<const Entry>(std::move(entry));
    by_name_.erase(known->request.name);  // the map's key points into an older entry
    by_name_.emplace(known->request.name, known.get());
    by_slot_[known->slot] = std::move(known);
  }
  void Evict(uint32_t slot) {
    ForgetName(slot);
    by_slot_.erase(slot);
  }
  // Keep the slot, but make it impossible to find it by the tensor's name.
  void ForgetName(uint32_t slot) {
    const auto known = by_slot_.find(slot);
    if (known == by_slot_.end()) return;
    const auto named = by_name_.find(known->second->request.name);
    if (named != by_name_.end() && named->second == known->second.get()) by_name_.erase(named);
  }

 private:
  std::unordered_map<uint32_t, std::shared_ptr<const Entry>> by_slot_;
  std::unordered_map<std::string_view, const Entry*> by_name_;  // the keys point into the entries
};

}  // namespace hvd
