// SPDX-License-Identifier: Apache-2.0
// State shared between Python and the operations: the current world and its process sets, and how many collectives each
// program contains.
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

// Rank and sizes that graphs may read; they change with the world.
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
  void ForgetProcessSet(int32_t id);  // id 0 is the set of all ranks: the world has been closed

  Place place();
  bool Find(int32_t id, KnownSet* set);

 private:
  std::mutex mutex_;
  Place place_;
  std::map<int32_t, KnownSet> sets_;
};

// Collectives of a graph, counted by the names of their nodes, because a graph may be instantiated more than once.
class Program {
 public:
  static Program* Find(int64_t number);  // nullptr for 0, which stands for an eager operation and belongs to no program

  void Add(const std::string& node);
  int collectives() const { return collectives_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::set<std::string> nodes_;
  std::atomic<int> collectives_{0};
};

}  // namespace hvd::tensorflow
