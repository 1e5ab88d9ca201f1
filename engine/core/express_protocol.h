// SPDX-License-Identifier: Apache-2.0
// Collectives of one process set that go express: told to all members at once, finished when all have told theirs (see
// agreement/express.h). Here is what a member sends, what it does with what comes, and what the leader hears of it.
//
// A status that is not ok tells that the world cannot go on: because of `lost_rank`, or, without one, of what `text`
// says.
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
  // All of them outlive it. `leader`: null unless this rank leads the set.
  ExpressProtocol(const ProcessSet& set, MemberState* state, Leader* leader, const Services* services);
  ExpressProtocol(const ExpressProtocol&) = delete;
  ExpressProtocol& operator=(const ExpressProtocol&) = delete;

  bool on() const { return ledger_ != nullptr; }  // else everything needs the leader's word
  bool delivering() const { return delivery_.has_value(); }
  bool under_way() const;  // something that we have sent is not finished
  // Something is under way that needs us even after we have told our part.
  bool passes_on() const { return set_.relays().any() && set_.relays().speaks() && under_way(); }

  // Tells all members our part of the tensor in this cache slot, and waits for theirs; Finish(slot) must follow. False:
  // nothing was told, the operation has to go the usual way.
  bool Send(std::unique_ptr<Operation>* operation, uint32_t slot);
  // Finishes the current round of the slot, if all parts of it are here.
  Status Finish(uint32_t slot);
  // `body`: what follows the header of a kExpress or kExpressPlace (`in_place`) message; or of kExpressGone.
  Status OnPart(int from, std::string_view body, bool in_place);
  // `whole`: with the header of a kExpressOthers message.
  Status OnOthers(int from, std::string_view whole, std::string_view body);
  Status OnGone(int from, std::string_view body);
  // Looks whether all members have delivered what we wait for; true if something is over.
  bool Step();

  // ---- as the log says
  void EndRound(const Entry& entry);                                    // a record ran it, by the word of the leader
  void EndRound(uint32_t slot, uint32_t round, const Status& failure);  // a record said that it failed
  // The tensor has lost its slot. The leader has finished all rounds before `ended`: parts that we lack of them are on
  // their way. What was told of others reached it too late, and counts as a report.
  void Evict(uint32_t slot, uint32_t ended);
  void AddRounds(Record* record) const;  // the leader's: tells which rounds errors mean, and evictions end

  // The leader's. Whether a member's report comes too early, and is kept until the round before is over: it has sent
  // its part of that, so it has its result and means the next one. `request` is taken then; null: by slot.
  bool HoldBack(int member, uint32_t slot, uint64_t seen, Request* request);

  // ---- ends
  // What a leader that leaves, or that takes the slot away, has finished, its members will finish too: every part of it
  // is on its way to them.
  void AddFinished(std::vector<control::Finished>* finished) const;
  void Settle(uint32_t slot, uint32_t round);
  bool Settled(const Operation& operation) const;
  // A delivery that is under way, and what was postponed, fails.
  void Fail(const Status& status);

  // A join waits here until nothing is under way: whoever has joined takes part in everything with zeros.
  void Postpone(std::unique_ptr<Operation> operation) { postponed_.push_back(std::move(operation)); }
  bool has_postponed() const { return !postponed_.empty(); }
  std::vector<std::unique_ptr<Operation>> TakePostponed() { return std::exchange(postponed_, {}); }

 private:
  // A collective whose members write into each other's outputs.
  struct Delivery {
    std::unique_ptr<Operation> operation;
    uint32_t slot = kNoSlot, round = kNoRound;
    std::vector<uint64_t> numbers;  // of the members' parts
  };

  ExpressRun RunOf(const Entry& entry) const;
  // Whether members write into each other's outputs.
  bool IsPushed(const ExpressRun& run) const;
  // Whether a member hears our part from us.
  bool IsToldByUs(const ExpressRun& run, size_t member) const;
  std::byte* BufferFor(size_t bytes);
  void CarryPart(const ExpressRun& run, std::unique_ptr<Operation> operation, const control::Part& part);
  void CarryLongPart(const ExpressRun& run, std::unique_ptr<Operation> operation, const control::Part& part);
  bool ShowPart(const ExpressRun& run, std::unique_ptr<Operation>* operation, const control::Part& part);
  bool OfferOutput(const ExpressRun& run, std::unique_ptr<Operation>* operation, const control::Part& part);
  void TellPlace(const control::Part& part, uint64_t number, const std::byte* place);
  void TellGone();
  void AwaitParts(std::unique_ptr<Operation> operation, const control::Part& part, const Express::Piece& own);
  // True: of the current round.
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
  // What waits for others' parts of the current round; null if there is nothing.
  std::unique_ptr<Operation> TakeWaiting(const Entry& known);

  const ProcessSet& set_;
  MemberState& state_;
  Leader* leader_;
  const Services& services_;
  std::unique_ptr<Express> ledger_;                    // null: everything needs the leader's word
  std::unique_ptr<ExpressMemory> memory_;              // null: no member shares memory with us
  std::pair<uint32_t, uint32_t> pushed_{kNoSlot, 0};   // slot and round of our last part that named an output
  std::optional<Delivery> delivery_;                   // until all of us have delivered
  std::vector<std::unique_ptr<Operation>> postponed_;  // joins
  std::vector<size_t> others_;                         // members; those that hear us soonest come first
  std::vector<uint32_t> retired_;                      // evicted, but for a round that waits here
  std::vector<Express::Piece> parts_of_all_;           // reused
  std::vector<Express::Told> parts_of_host_;           // likewise
};

}  // namespace hvd
