// SPDX-License-Identifier: Apache-2.0
// What Python tells the operations: which world and process sets are alive; and what operations tell each other: how
// many collectives stand in one program.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "bindings/shared/contexts.h"

namespace hvd::tensorflow {

bindings::Contexts& AllContexts();

// The numbers that graphs may ask for, which change when the world does.
struct Place {
  bool initialized = false;
  int32_t rank = 0, local_rank = 0, local_size = 0;
};
struct KnownSet {
  int32_t size = 0;
  bool included = false;
};

class Topology {
 public:
  static Topology& Current();

  void Set(const Place& place);
  void SetProcessSet(int32_t id, const KnownSet& set);
  void ForgetProcessSet(int32_t id);  // 0 is the set of all ranks: the world is gone

  Place place();
  bool Find(int32_t id, KnownSet* set);

 private:
  std::mutex mutex_;
  Place place_;
  std::map<int32_t, KnownSet> sets_;
};

// The collectives of a graph, counted by the names of their nodes: a graph may be instantiated more than once.
class Program {
 public:
  static Program* Find(int64_t number);  // nullptr for 0: an eager operation, which is on its own

  void Add(const std::string& node);
  int collectives() const { return collectives_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::set<std::string> nodes_;
  std::atomic<int> collectives_{0};
};

}  // namespace hvd::tensorflow
