// SPDX-License-Identifier: Apache-2.0
// Fast path for a small collective that every member knows by its cache slot: it needs no decision by the leader. Each
// member sends its contribution (its part) to all others at once. A member that has all parts has the result, or can
// compute it, one message time after the last member called. Runs of a slot are numbered as rounds. A round ends by its
// parts if all members sent one, else by a record in the leader's log. It never ends by both, because the leader treats
// parts as reports and decides rounds that lack a part. This class records the parts on one member, for one process
// set. Pure, like the coordinator.
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
  // Contents of a part: bytes that came with it, or a pointer into the sender's memory and the part's number (see
  // express_memory.h).
  struct Piece {
    const std::byte* data = nullptr;
    size_t size = 0;  // number of bytes; for kInPlace, as many as the operation needs
    uint64_t number = 0;
  };
  static constexpr size_t kInPlace = SIZE_MAX;

  // `gone(member, number)` is called for each numbered part that is no longer needed.
  explicit Express(size_t members, std::function<void(size_t, uint64_t)> gone = nullptr)
      : members_(members), gone_(std::move(gone)) {}

  // Return the round of this member's next run of the slot.
  uint32_t Round(uint32_t slot) const;
  // Return true if the round or its slot is over.
  bool IsOver(uint32_t slot, uint32_t round) const;
  // Add a member's part; `seen` is the last record that the member had applied. Return false if its round is over. The
  // bytes are not copied; Keep copies them if they are still needed then.
  bool Add(uint32_t slot, uint32_t round, size_t member, uint64_t seen, const Piece& piece);
  void Keep(uint32_t slot, uint32_t round, size_t member);
  // Return true if all parts of the current round have arrived, and store them in `parts` by member. They are valid
  // until the round ends.
  bool Complete(uint32_t slot, std::vector<Piece>* parts) const;
  bool Has(uint32_t slot, size_t member) const;  // returns true if its part of the current round is here
  // Part of a member. PartsOf returns true, and stores the parts of these members in any round, if all have arrived.
  // They are valid until the next call of any method.
  struct Told {
    size_t member;
    uint64_t seen;
    Piece piece;
  };
  bool PartsOf(uint32_t slot, uint32_t round, const std::vector<int>& members, std::vector<Told>* parts) const;

  // End the current round. Every run that could have taken the fast path counts as a round, so that all members count
  // alike.
  void End(uint32_t slot);
  // Note that a record ended this round, which may be later than ours: parts that others have may still be on their way
  // to us.
  void EndBy(uint32_t slot, uint32_t round);
  void Forget(uint32_t slot);

  // A report about a round that reached the leader while the round before still lacks parts that others have.
  struct Report {
    size_t member;
    uint64_t seen;
    bool express;
    std::optional<Request> request;  // empty: the member reported the slot only
  };
  void Postpone(uint32_t slot, Report report);
  // Return the postponed reports for the current round, and the parts of that round as reports.
  std::vector<Report> TakeCurrent(uint32_t slot);

  // Note that the leader has finished all rounds before this one. This rank will finish them too, even if the leader
  // leaves.
  void Settle(uint32_t slot, uint32_t round);
  bool Settled(uint32_t slot, uint32_t round) const;
  // Return {slot, round} of all slots that have or had parts.
  std::vector<std::pair<uint32_t, uint32_t>> Rounds() const;

 private:
  struct Part {
    uint32_t round;
    size_t member;
    uint64_t seen;
    Piece piece;
    std::string kept;  // copy of the piece, once Keep was called
  };
  // State of one slot.
  struct Course {
    uint32_t round = 0;
    uint32_t resume = 0;   // the round after the last one that a record ended
    uint32_t settled = 0;  // rounds before this one are certain to finish
    bool used = false;
    std::vector<Part> parts;
    std::vector<Report> postponed;
  };
  const Course* Find(uint32_t slot) const;
  static Piece PieceOf(const Part& part);  // the piece, or its copy
  void Advance(Course* course, uint32_t round);
  void Dismiss(const Part& part) const;

  size_t members_;
  std::function<void(size_t, uint64_t)> gone_;
  std::unordered_map<uint32_t, Course> courses_;
};

}  // namespace hvd
