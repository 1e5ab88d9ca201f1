// SPDX-License-Identifier: Apache-2.0
// How launch slots are requested from the leader of the global set, and received through its log (see
// agreement/launch_order.h).
#pragma once

#include <string_view>
#include <vector>

#include "agreement/launch_order.h"
#include "core/set_registry.h"

namespace hvd {

// Owns the launch order of a world.
class LaunchSlots {
 public:
  explicit LaunchSlots(const SetRegistry* sets) : sets_(*sets) {}

  LaunchOrder* order() { return &order_; }
  // Append the slots that a record contains.
  void Add(const std::vector<Turn>& turns) {
    for (const Turn& turn : turns) {
      if (sets_.Find(turn.set, turn.epoch)) order_.Add(turn);
    }
  }
  // Request the slots that this rank's batches need.
  void RequestWanted() {
    if (!order_.wants()) return;
    Membership& global = sets_.global();
    for (const Turn& wanted : order_.TakeWanted()) {
      global.mail.ToLeader(control::Type::kTurn, wanted, [&](const Turn& turn) { Give(global, turn); });
    }
  }
  // Process the request of another rank. Return an error if it is malformed.
  Status OnRequest(std::string_view whole, std::string_view body) const {
    Membership& global = sets_.global();
    if (global.mail.OnWayUp<Turn>(whole, body, [&](const Turn& turn) { Give(global, turn); })) return Status::Ok();
    return Status::Failed("a process set's leader asked for a turn in a malformed message");
  }

 private:
  static void Give(const Membership& global, const Turn& turn) { global.leader->coordinator().Give(turn); }

  const SetRegistry& sets_;
  LaunchOrder order_;
};

}  // namespace hvd
