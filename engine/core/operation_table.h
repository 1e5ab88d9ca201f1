// SPDX-License-Identifier: Apache-2.0
// Operations that wait for negotiation, by name. A model submits the same parameters in every step. So each key refers
// to the name inside its operation, and the memory of removed entries is reused.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/handle.h"

namespace hvd {

class OperationTable {
 public:
  // Add an operation. Submissions guarantees that no two of them have the same name.
  void Add(std::unique_ptr<Operation> operation) {
    const std::string_view name = operation->request.name;
    if (spare_.empty()) {
      table_.emplace(name, std::move(operation));
      return;
    }
    spare_.back().key() = name;
    spare_.back().mapped() = std::move(operation);
    table_.insert(std::move(spare_.back()));
    spare_.pop_back();
  }
  const Operation* Find(std::string_view name) const {
    const auto found = table_.find(name);
    return found == table_.end() ? nullptr : found->second.get();
  }
  // Remove and return the operation of this name, or return null.
  std::unique_ptr<Operation> Take(std::string_view name) {
    Table::node_type node = table_.extract(name);
    if (!node) return nullptr;
    std::unique_ptr<Operation> operation = std::move(node.mapped());
    if (spare_.size() < kSpareNames) spare_.push_back(std::move(node));
    return operation;
  }
  std::vector<std::unique_ptr<Operation>> TakeAll() {
    std::vector<std::unique_ptr<Operation>> all;
    for (auto& [name, operation] : std::exchange(table_, {})) all.push_back(std::move(operation));
    return all;
  }
  bool empty() const { return table_.empty(); }
  template <typename Holds>
  bool Any(Holds holds) const {
    for (const auto& [name, operation] : table_) {
      if (holds(*operation)) return true;
    }
    return false;
  }

 private:
  using Table = std::unordered_map<std::string_view, std::unique_ptr<Operation>>;
  Table table_;
  std::vector<Table::node_type> spare_;
};

}  // namespace hvd
