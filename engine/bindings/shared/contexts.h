// SPDX-License-Identifier: Apache-2.0
// Contexts: numbers that compiled programs contain instead of a world. A context stands for a process set of the
// current world, so that a program traced before a re-initialisation runs in the new world, with its size and
// membership.
#pragma once

#include <hvd/engine.h>

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace hvd::bindings {

struct Membership {
  hvd_world* world;
  // index: position of this rank in the process set; rank: its number in the world
  int32_t process_set, size, index, rank;
};

class Contexts {
 public:
  // Read lock that keeps the worlds of the memberships alive. Hold it only briefly, because closing a world waits for
  // it.
  class Reading {
   public:
    explicit Reading(Contexts& contexts) : contexts_(contexts), lock_(contexts.mutex_) {}
    const Membership* Find(int64_t context) const {
      auto found = contexts_.members_.find(context);
      return found == contexts_.members_.end() ? nullptr : &found->second;
    }

   private:
    Contexts& contexts_;
    std::shared_lock<std::shared_mutex> lock_;
  };

  void Bind(int64_t context, const Membership& member) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    members_[context] = member;
  }
  void Unbind(int64_t context) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    members_.erase(context);
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<int64_t, Membership> members_;
};

}  // namespace hvd::bindings
