// SPDX-License-Identifier: Apache-2.0
// The engine: takes submissions, negotiates with the other ranks through the leader of each set, and runs what was
// agreed. Progress does what is possible now and returns; only the thread that holds the driver's token calls it.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agreement/control.h"
#include "agreement/deadlocks.h"
#include "agreement/departures.h"
#include "base/config.h"
#include "base/log.h"
#include "core/callers.h"
#include "core/handle.h"
#include "core/membership.h"
#include "core/point_to_point.h"
#include "core/services.h"
#include "core/stack_teller.h"
#include "core/submissions.h"
#include "tracing/timeline.h"
#include "transport/connector.h"
#include "transport/mailbox.h"
#include "transport/neighbours.h"
#include "transport/poller.h"

namespace hvd {

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  struct Parts {
    Identity identity;
    Settings settings;
    std::vector<int> host_of_rank;        // a number for the host of each rank
    std::vector<std::string> host_names;  // name of the host of each rank
    Arena* arena;                         // null: no shared memory
    Neighbours* neighbours;
    Connector* connector;
    Poller* poller;
    Submissions* submissions;
    const Callers* callers;
    Timeline* timeline;
    StackTeller stack_teller;
    StackTeller block_teller;  // describes one thread: see hvd_api's tell_block
    Log log;
    ForeignJobs* foreign = nullptr;  // null unless an external library moves data
    Devices* devices = nullptr;
  };
  explicit Engine(const Parts& parts);
  ~Engine();

  // Run one round of everything. Return true if anything moved. `drain`: also take new submissions. `thorough`: also
  // check what is otherwise checked only now and then; required for the last round before sleeping.
  bool Progress(bool drain, bool thorough = false);
  // Return true if some ranks are reached by sockets.
  bool has_links() const { return mailbox_.has_links(); }
  // Longest time for which asynchronous work is gathered before it is announced.
  Clock::duration gathering_time() const { return std::chrono::microseconds(tuned_.cycle_time_us.load(kRelaxed)); }
  // Longest time for which the driver may sleep if nothing wakes it.
  Clock::duration MaximumSleep() const;
  void OnEvents(const std::vector<int>& descriptors);
  // Wake local peers that sleep although they have messages from us. Called before a pause and when a wait takes long.
  void RingUnread() { mailbox_.RingUnread(); }
  bool Hungry() const;           // true while an operation runs that peers' data advance
  bool AwaitsAgreement() const;  // true while an operation of this rank waits to be agreed upon
  // Return the handles finished since the last call. Their callbacks run after the token has been released.
  std::vector<std::shared_ptr<Handle>> TakeFinished() { return completions_.TakeFinished(); }
  bool has_finished() const { return !completions_.empty(); }

  // Send all ranks the notice that this rank leaves normally, and fail its pending operations. `at_once`: abandon
  // unfinished work on devices.
  void Leave(bool at_once);
  bool AllSent() const;
  // End the world because of a failure on this rank.
  void AbortHere(const std::string& why) { Lose(parts_.identity.rank, why); }
  // End the world because this rank's program has failed: all operations fail with this text on every rank. Return
  // false if the world had already ended for another reason.
  bool FailHere(const std::string& text) {
    const bool is_first = departures_.over().ok();
    Abort(parts_.identity.rank, text);
    return is_first;
  }
  // End the world: every pending and later operation fails with this text, here and on every rank.
  void Abort(int lost_rank, const std::string& text);
  // End the world because of a lost rank, which the text names.
  void Lose(int rank, const std::string& why);

  std::string Describe() const;
  void CloseDescriptors();
  // Free memory on devices, after the last round. If the world ended normally, wait for peers that still read it.
  void LeaveDevices(Clock::time_point until);

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  // Number of deadlock limits to wait for threads that have not called yet but could end a wait.
  static constexpr int kIdlePatience = 10;
  // Tuning values in force for later records of the global set's log. The driving thread writes them; Describe reads
  // them too.
  struct Tuned {
    std::atomic<uint64_t> fusion_threshold, cycle_time_us, chunk_bytes;
    std::atomic<bool> final;
    void Store(const Tuning& values);
    Tuning Load() const;
  };

  bool Drain();
  void Announce(Membership& membership, std::unique_ptr<Operation> operation);
  bool MayGoExpress(const Membership& membership, const Operation& operation) const;
  void AnnouncePostponed(Membership& membership);
  void FlushReady();

  void OnMessage(int from, std::string_view message);
  void OnSetMessage(Membership& membership, int from, std::string_view whole, std::string_view body);
  void OnReports(Membership& membership, std::string_view whole, std::string_view body);
  bool Decide(Membership& membership);
  void Publish(const ProcessSet& set, const Record& record);
  void SendDown(const ProcessSet& set, std::string_view message);

  void Apply(Membership& membership, Record record);
  void ApplyTuning(const Tuning& tuning);
  void AddTurns(const std::vector<Turn>& turns);
  void AskForTurns();
  void OnTurn(const Membership& global, std::string_view whole, std::string_view body);
  void ExpectMembers(const ProcessSet& set);
  void AddSet(MemberState& global, const Entry& entry);
  void RemoveSet(MemberState& global, const Entry& entry);

  void Finish(std::unique_ptr<Operation> operation, const Status& status) {
    completions_.Finish(std::move(operation), status);
  }
  void FailAll(Membership& membership, const Status& status);
  void Heed(const Status& trouble);

  void Housekeep();
  void WatchNccl(Clock::time_point now);
  void WatchLaunches(Clock::time_point now);
  std::vector<std::shared_ptr<Communicator>> Communicators() const;
  void AnswerCalls();
  void TakePulses(Clock::time_point now);
  void InspectStalls(Membership& membership, Clock::time_point now);
  void OnStall(const Membership& membership, std::string_view whole, std::string_view body);
  void OnStack(const Membership& membership, std::string_view whole, std::string_view body);
  void ShowStall(const MemberState& state, const std::string& name, const std::string& text) const;
  void AskForStack(const ProcessSet& set, const std::string& name);
  void ReportStack();

  // In engine_blocks.cc: threads that do nothing but wait, and deadlocks between ranks.
  bool looks_for_deadlocks() const { return parts_.settings.deadlock_ms > 0 && parts_.identity.size > 1; }
  bool AnybodyBlocked() const;
  void LookAtBlocks(Clock::time_point now);
  struct ToldBlock;
  bool OthersHaveCalled(const ToldBlock& told, const Callers::Waiting& waiting) const;
  void TellWhoGoesOn(const std::vector<Callers::Waiting>& waiting);
  void AnswerAboutBlock();
  void ReportBlock(const Callers::Waiting& waiting, std::string_view answer, Clock::time_point now);
  std::pair<Membership*, const Operation*> FindPending(const Handle& handle) const;
  bool AllAnnounced() const;
  void TellWait(const Block& block);
  void OnBlock(const Membership& membership, std::string_view whole, std::string_view body);
  void OnWait(const Membership& global, std::string_view whole, std::string_view body);
  void OnDeadlock(const Membership& global, std::string_view whole, std::string_view body);
  void FindDeadlocks(const Membership& global, Clock::time_point now);
  void FailStuck(Membership& membership, const Deadlock& deadlock);

  void Hear(bool eager, bool* moved);
  void CheckLinks();
  void Act(const Departures::Verdict& verdict);
  void Part(int rank);
  void PartFrom(Membership& membership, int rank);
  void SayBye();
  void OnBye(int from, std::string_view body);
  void OnGoneMember(Membership& membership, int from, std::string_view whole, std::string_view body);
  void TellOfDeparture(const ProcessSet& set, int rank);
  void CloseSet(Membership& membership, int rank);
  Timeline* timeline() const { return parts_.timeline->if_on(); }

  Parts parts_;
  LaunchOrder launches_;
  Surroundings around_;
  Mailbox mailbox_;
  Departures departures_;
  Completions completions_;
  Counters counters_;
  Services services_;
  std::unique_ptr<PointToPoint> messages_;
  std::map<int, std::unique_ptr<Membership>> sets_;  // process sets that this rank belongs to
  Tuned tuned_;
  std::map<int, std::vector<int>> foreign_;  // ranks of the other process sets
  std::atomic<size_t> set_count_{1};         // size of sets_ and foreign_ together, for Describe
  // Messages for a set that this rank has not added yet, with their senders.
  std::deque<std::pair<int, std::string>> early_;
  uint32_t newest_epoch_ = 0;
  Submissions::Batch drained_;
  std::map<int, std::string> ready_;  // cache slots to report, by set
  std::vector<Neighbour*> spoke_;     // local peers whose liveness socket had data since the last look, in that order
  std::map<int, uint64_t> pulses_;    // last heartbeat counter of each local peer
  StackTeller stack_teller_;
  // The set that asked for the stack, and its tensor that waits for this rank.
  std::pair<int, std::string> stack_asked_by_;
  // What this rank has reported about a thread that waits.
  struct ToldBlock {
    int64_t handle = 0;
    Clock::time_point next;    // when to report the thread again
    Clock::duration pause{0};  // time between the last report and the next
    bool others_are_idle = false;
  };
  std::map<uint64_t, ToldBlock> told_blocks_;  // reported waits, by thread
  uint64_t blocks_told_ = 0;
  StackTeller block_teller_;
  Callers::Waiting asked_about_;
  Deadlocks deadlocks_;  // used by the global leader only
  Clock::time_point next_housekeeping_;
  Clock::time_point nccl_troubled_since_;
  std::pair<int, Clock::time_point> first_to_leave_{-1, {}};  // the first other rank that left normally, and when
  std::string bye_;          // leave notice of this rank, for ranks that connect after it has left
  bool left_whole_ = false;  // true if this rank left with nothing under way and no rank lost
  uint64_t rounds_ = 0, rounds_unrung_ = 0;
};

}  // namespace hvd
