// SPDX-License-Identifier: Apache-2.0
// Fast path without the leader for collectives of one process set ("express"): each member sends its part to all others
// at once, and the collective is finished when all parts have arrived (see agreement/express.h). This class sends and
// receives parts, and reports them to the leader.
//
// A returned status that is not ok means that the world must end: because of `lost_rank`, or, if that is -1, for the
// reason in `text`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "agreement/control.h"
#include "agreement/express.h"
#include "agreement/leader.h"
#include "core/handle.h"
#include "core/member_state.h"
#include "core/process_set.h"
#include "core/services.h"
#include "memory/express_memory.h"

namespace hvd {

class ExpressRun;

class ExpressProtocol {
 public:
  // All arguments must outlive this object. `leader` is null unless this rank leads the set.
  ExpressProtocol(const ProcessSet& set, MemberState* state, Leader* leader, const Services* services);
  ExpressProtocol(const ExpressProtocol&) = delete;
  ExpressProtocol& operator=(const ExpressProtocol&) = delete;

  bool on() const { return ledger_ != nullptr; }  // false: every operation needs the leader's decision
  bool delivering() const { return delivery_.has_value(); }
  bool under_way() const;  // true while a part that this rank has sent is not finished
  // Return true while a collective needs this rank to forward parts even after it has sent its own.
  bool passes_on() const { return set_.relays().any() && set_.relays().speaks() && under_way(); }

  // Send our part of the tensor in this cache slot to all members and wait for theirs; the caller must then call
  // Finish(slot). Return false if nothing was sent and the operation has to go through the leader.
  bool Send(std::unique_ptr<Operation>* operation, uint32_t slot);
  // Finish the current round of the slot if all its parts have arrived.
  Status Finish(uint32_t slot);
  // Handle a part. `body` is what follows the header of a kExpress or kExpressPlace (`in_place`) message.
  Status OnPart(int from, std::string_view body, bool in_place);
  // Handle forwarded parts. `whole` includes the header of the kExpressOthers message, `body` does not.
  Status OnOthers(int from, std::string_view whole, std::string_view body);
  Status OnGone(int from, std::string_view body);
  // Check whether all members have written what we wait for. Return true if an operation has ended.
  bool Step();

  // ---- what the leader's log says
  void EndRound(const Entry& entry);                                    // a batch of the log has run the tensor
  void EndRound(uint32_t slot, uint32_t round, const Status& failure);  // a record of the log reports that it failed
  // Remove a tensor's slot. The leader has finished all rounds before `ended`, so their missing parts are on the way to
  // us. Parts of later rounds reached the leader too late and count as reports.
  void Evict(uint32_t slot, uint32_t ended);
  void AddRounds(Record* record) const;  // for the leader: add the rounds that failed or ended by eviction

  // Return true if a member's report comes too early and is kept until the current round is over. The member has sent
  // its part of this round, so it has its result already and means the next round. Takes `request`, which is null if
  // the member reported the slot only. Leader only.
  bool HoldBack(int member, uint32_t slot, uint64_t seen, Request* request);

  // ---- how rounds end when the leader leaves

  // Rounds that a leader has finished before it leaves. The members will finish them too, because all parts are on
  // their way to them. AddFinished lists them, Settle records one of them, and Settled returns true if the operation
  // belongs to one.
  void AddFinished(std::vector<control::Finished>* finished) const;
  void Settle(uint32_t slot, uint32_t round);
  bool Settled(const Operation& operation) const;
  // Fail the delivery that is under way and the postponed operations.
  void Fail(const Status& status);

  // Keep a join until nothing is under way, because a rank that has joined contributes zeros to everything.
  void Postpone(std::unique_ptr<Operation> operation) { postponed_.push_back(std::move(operation)); }
  bool has_postponed() const { return !postponed_.empty(); }
  std::vector<std::unique_ptr<Operation>> TakePostponed() { return std::exchange(postponed_, {}); }

 private:
  // A collective whose members write into each other's outputs.
  struct Delivery {
    std::unique_ptr<Operation> operation;
    uint32_t slot = kNoSlot, round = kNoRound;
    std::vector<uint64_t> numbers;  // number of each member's part
  };

  ExpressRun RunOf(const Entry& entry) const;
  // Return true if members write into each other's outputs.
  bool IsPushed(const ExpressRun& run) const;
  // Return true if we send our part to this member ourselves, instead of having it forwarded.
  bool IsToldByUs(const ExpressRun& run, size_t member) const;
  std::byte* BufferFor(size_t bytes);
  void CarryPart(const ExpressRun& run, std::unique_ptr<Operation> operation, const control::Part& part);
  void CarryLongPart(const ExpressRun& run, std::unique_ptr<Operation> operation, const control::Part& part);
  bool ShowPart(const ExpressRun& run, std::unique_ptr<Operation>* operation, const control::Part& part);
  bool OfferOutput(const ExpressRun& run, std::unique_ptr<Operation>* operation, const control::Part& part);
  void TellPlace(const control::Part& part, uint64_t number, const std::byte* place);
  void TellGone();
  void AwaitParts(std::unique_ptr<Operation> operation, const control::Part& part, const Express::Piece& own);
  // Record a part. Return true if it belongs to the current round.
  bool AddPart(int member, const control::Part& part, const Express::Piece& piece);
  void PassOn(int member, const control::Part& part);
  bool IsKnownOrToCome(const control::Part& part) const;
  void HearPart(int member, uint32_t slot, uint64_t seen);
  bool MakesSense(const ExpressRun& run, size_t member, const Express::Piece& piece) const;
  void StartDelivery(const ExpressRun& run, std::unique_ptr<Operation> operation, uint32_t slot);
  void EndDelivery(const Status& status);
  void AfterRound(uint32_t slot);
  void Forget(uint32_t slot);
  void CountMemory(const ExpressRun& run);
  // Return the operation that waits for other members' parts of the current round, or null.
  std::unique_ptr<Operation> TakeWaiting(const Entry& known);

  const ProcessSet& set_;
  MemberState& state_;
  Leader* leader_;
  const Services& services_;
  std::unique_ptr<Express> ledger_;                    // null: every operation needs the leader's decision
  std::unique_ptr<ExpressMemory> memory_;              // null: no member shares memory with us
  std::pair<uint32_t, uint32_t> pushed_{kNoSlot, 0};   // slot and round of our last part that named an output
  std::optional<Delivery> delivery_;                   // set until all members have written to our output
  std::vector<std::unique_ptr<Operation>> postponed_;  // postponed joins
  std::vector<size_t> others_;                         // the other members; those in shared memory come first
  std::vector<uint32_t> retired_;                      // evicted slots with a round that is still waiting here
  std::vector<Express::Piece> parts_of_all_;           // kept to reuse its memory
  std::vector<Express::Told> parts_of_host_;           // kept to reuse its memory
};

}  // namespace hvd
