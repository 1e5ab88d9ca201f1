// SPDX-License-Identifier: Apache-2.0
// A small allreduce that every member knows by its cache slot needs no word from the leader: each member sends what it
// has to all others at once, and whoever holds a part from everybody has the result, one trip after the last of them
// called. Runs of a slot are numbered by rounds. A round ends by its parts, if all members sent one, or else by a
// record in the leader's log; never by both, for the leader takes parts for reports and decides what lacks one. This is
// the member's ledger of parts, for one process set. Pure, like the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/message.h"

namespace hvd {

class Express {
 public:
  explicit Express(size_t members) : members_(members) {}

  // The round that this member's next run of the slot has.
  uint32_t Round(uint32_t slot) const;
  // A part from a member, `seen` being the last record it had applied. False: for a round that is over.
  bool Add(uint32_t slot, uint32_t round, size_t member, uint64_t seen, std::string_view data);
  // The parts of the current round by member, if all are here.
  bool Complete(uint32_t slot, std::vector<std::string_view>* parts) const;
  bool Has(uint32_t slot, size_t member) const;  // its part of the current round

  // The current round is over. All members must count alike: every run that could have gone this way is a round.
  void End(uint32_t slot);
  // A record ended this round, which may be later than ours: others may hold parts that are still on their way to us.
  void EndBy(uint32_t slot, uint32_t round);
  void Forget(uint32_t slot) { courses_.erase(slot); }

  // What the leader hears about a round too early: while the one before lacks parts that others have already.
  struct Report {
    size_t member;
    uint64_t seen;
    bool express;
    std::optional<Request> request;  // else by slot
  };
  void Postpone(uint32_t slot, Report report);
  // Postponed reports and parts that have become current.
  std::vector<Report> TakeCurrent(uint32_t slot);

  // The leader has finished all rounds before this one: so will we, even if it leaves.
  void Settle(uint32_t slot, uint32_t round);
  bool Settled(uint32_t slot, uint32_t round) const;
  // {slot, round} of all slots that have parts or had some.
  std::vector<std::pair<uint32_t, uint32_t>> Rounds() const;

 private:
  struct Part {
    uint32_t round;
    size_t member;
    uint64_t seen;
    std::string data;
  };
  struct Course {
    uint32_t round = 0;
    uint32_t resume = 0;   // the round after the last one that a record ended
    uint32_t settled = 0;  // rounds before this one are certain to finish
    bool used = false;
    std::vector<Part> parts;
    std::vector<Report> postponed;
  };
  const Course* Find(uint32_t slot) const;
  void Advance(Course* course, uint32_t round);

  size_t members_;
  std::unordered_map<uint32_t, Course> courses_;
};

}  // namespace hvd
