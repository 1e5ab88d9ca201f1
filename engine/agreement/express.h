// SPDX-License-Identifier: Apache-2.0
// A small collective that every member knows by its cache slot needs no decision by the leader: each member tells all
// others at once what it contributes, and whoever has heard from everybody has the result, or can make it, one trip
// after the last of them called. Runs of a slot are numbered by rounds. A round ends by its parts, if all members sent
// one, or else by a record in the leader's log; never by both, for the leader takes parts for reports and decides what
// lacks one. This is the member's ledger of parts, for one process set. Pure, like the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agreement/message.h"

namespace hvd {

class Express {
 public:
  // What a part says: bytes that came with it, or a place in the sender's memory and the part's number (see
  // express_memory.h).
  struct Piece {
    const std::byte* data = nullptr;
    size_t size = 0;  // kInPlace: as many as they must be
    uint64_t number = 0;
  };
  static constexpr size_t kInPlace = SIZE_MAX;

  // `gone(member, number)` is called for each numbered part that is no longer needed.
  explicit Express(size_t members, std::function<void(size_t, uint64_t)> gone = nullptr)
      : members_(members), gone_(std::move(gone)) {}

  // The round that this member's next run of the slot has.
  uint32_t Round(uint32_t slot) const;
  // Whether a round, or its slot, is over.
  bool IsOver(uint32_t slot, uint32_t round) const;
  // A part from a member, `seen` being the last record it had applied. False if its round is over. Bytes that came with
  // it stay where they are: Keep copies them, if they are still needed then.
  bool Add(uint32_t slot, uint32_t round, size_t member, uint64_t seen, const Piece& piece);
  void Keep(uint32_t slot, uint32_t round, size_t member);
  // The parts of the current round by member, if all are here; valid until it ends.
  bool Complete(uint32_t slot, std::vector<Piece>* parts) const;
  bool Has(uint32_t slot, size_t member) const;  // its part of the current round
  // The parts of some members in any round, if all of those are here; valid until the next call of anything.
  struct Told {
    size_t member;
    uint64_t seen;
    Piece piece;
  };
  bool PartsOf(uint32_t slot, uint32_t round, const std::vector<int>& members, std::vector<Told>* parts) const;

  // The current round is over. All members must count alike: every run that could have gone this way is a round.
  void End(uint32_t slot);
  // A record ended this round, which may be later than ours: others may hold parts that are still on their way to us.
  void EndBy(uint32_t slot, uint32_t round);
  void Forget(uint32_t slot);

  // What the leader hears about a round too early: while the one before still lacks parts that others already have.
  struct Report {
    size_t member;
    uint64_t seen;
    bool express;
    std::optional<Request> request;  // else by slot
  };
  void Postpone(uint32_t slot, Report report);
  // Postponed reports and parts that have become current.
  std::vector<Report> TakeCurrent(uint32_t slot);

  // The leader has finished all rounds before this one, and so will we, even if it leaves.
  void Settle(uint32_t slot, uint32_t round);
  bool Settled(uint32_t slot, uint32_t round) const;
  // {slot, round} of all slots that have parts or had some.
  std::vector<std::pair<uint32_t, uint32_t>> Rounds() const;

 private:
  struct Part {
    uint32_t round;
    size_t member;
    uint64_t seen;
    Piece piece;
    std::string kept;  // the piece, since it was copied
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
  static Piece PieceOf(const Part& part);  // wherever it lies now
  void Advance(Course* course, uint32_t round);
  void Dismiss(const Part& part) const;

  size_t members_;
  std::function<void(size_t, uint64_t)> gone_;
  std::unordered_map<uint32_t, Course> courses_;
};

}  // namespace hvd
