// SPDX-License-Identifier: Apache-2.0
// The engine proper: takes submissions, agrees with the other ranks through each set's leader, and runs what was
// agreed. Progress does what can be done now and returns; whoever holds the driver's token calls it, nobody else.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agreement/control.h"
#include "base/config.h"
#include "base/log.h"
#include "core/handle.h"
#include "core/point_to_point.h"
#include "core/process_set.h"
#include "core/stack_teller.h"
#include "core/submissions.h"
#include "tracing/timeline.h"
#include "transport/connector.h"
#include "transport/mailbox.h"
#include "transport/neighbours.h"
#include "transport/poller.h"
#include "tuning/tuning_session.h"

namespace hvd {

class ExpressRun;

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  struct Parts {
    Identity identity;
    Settings settings;
    std::vector<int> host_of_rank;        // any number that identifies the host
    std::vector<std::string> host_names;  // by rank
    Arena* arena;                         // may be null
    Neighbours* neighbours;
    Connector* connector;
    Poller* poller;
    Submissions* submissions;
    Timeline* timeline;
    StackTeller stack_teller;
    Log log;
  };
  explicit Engine(const Parts& parts);
  ~Engine();

  // One round of everything; true if anything moved. `drain`: also take new submissions. `thorough`: also what is
  // looked at only now and then, as a last look before sleeping must.
  bool Progress(bool drain, bool thorough = false);
  // Whether some ranks are reached by sockets.
  bool has_links() const { return mailbox_.has_links(); }
  // How long asynchronous work is gathered at most.
  Clock::duration gathering_time() const { return std::chrono::microseconds(tuned_.cycle_time_us.load(kRelaxed)); }
  // How long the driver may sleep when nothing wakes it.
  Clock::duration MaximumSleep() const;
  void OnEvents(const std::vector<int>& descriptors);
  // Wakes neighbours who sleep on messages of ours; before a pause, and when a wait takes longer than a moment.
  void RingUnread() { mailbox_.RingUnread(); }
  bool Hungry() const;  // in the middle of something that peers' data move on
  // Handles finished since the last call. Their callbacks run after the token has been released.
  std::vector<std::shared_ptr<Handle>> TakeFinished();
  bool has_finished() const { return !finished_.empty(); }

  // Tells everybody that this rank leaves of its own accord; what is pending fails here.
  void Leave();
  bool AllSent() const;
  // An exception came out of Progress: as beyond repair as anything.
  void AbortHere(const std::string& why) { Lose(parts_.identity.rank, why); }
  // Something is beyond repair: every pending and later operation fails, here and on every rank, with this text.
  void Abort(int lost_rank, const std::string& text);
  // The same because of a rank, which the text names.
  void Lose(int rank, const std::string& why);

  std::string Describe() const;
  void CloseDescriptors();

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  // What is in force for what the global set's log brings next. Written by the driver, read by Describe too.
  struct Tuned {
    std::atomic<uint64_t> fusion_threshold, cycle_time_us, chunk_bytes;
    std::atomic<bool> final;
    void Store(const Tuning& values);
    Tuning Load() const;
  };

  // A broken lane is judged only after this long: whoever holds the control link of the other end knows more.
  static constexpr std::chrono::milliseconds kGrace{1000};

  bool AwaitsAgreement() const;
  bool Drain();
  void Announce(ProcessSet& set, std::unique_ptr<Operation> operation);
  void FlushReady();

  void OnMessage(int from, std::string_view message);
  void OnSetMessage(ProcessSet& set, int from, std::string_view whole, std::string_view body);
  void OnReports(ProcessSet& set, std::string_view whole, std::string_view body);
  bool Decide(ProcessSet& set);
  void Publish(ProcessSet& set, const Record& record);
  void SendDown(const ProcessSet& set, std::string_view message);

  void Apply(ProcessSet& set, Record record);
  void ApplyTuning(ProcessSet& set, const Tuning& tuning);
  void Evict(ProcessSet& set, uint32_t slot);
  void ApplyBatch(ProcessSet& set, std::vector<Entry> entries);
  std::shared_ptr<const Entry> Learn(ProcessSet& set, Entry entry);
  void Start(ProcessSet& set, Entries entries, bool placed);
  void ApplyAddSet(ProcessSet& global, const Entry& entry);
  void ApplyRemoveSet(ProcessSet& global, const Entry& entry);
  bool Step(ProcessSet& set);
  bool Prepare(ProcessSet& set, ProcessSet::Running* batch);

  bool MayGoExpress(const ProcessSet& set, const Operation& operation) const;
  bool SendExpress(ProcessSet& set, std::unique_ptr<Operation>* operation, uint32_t slot);
  void CarryPart(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation> operation,
                 const control::Part& part);
  bool ShowPart(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation>* operation,
                const control::Part& part);
  bool OfferOutput(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation>* operation,
                   const control::Part& part);
  void TellPlace(ProcessSet& set, const control::Part& part, uint64_t number, const std::byte* place);
  void TellGone(const ProcessSet& set);
  void OnGoneParts(ProcessSet& set, int from, std::string_view body);
  void AwaitParts(ProcessSet& set, std::unique_ptr<Operation> operation, const control::Part& part,
                  const Express::Piece& own);
  void OnExpress(ProcessSet& set, int from, std::string_view body, bool in_place);
  void OnPart(ProcessSet& set, int member, const control::Part& part, const Express::Piece& piece);
  void HearPart(ProcessSet& set, int member, uint32_t slot, uint64_t seen);
  void FinishExpress(ProcessSet& set, uint32_t slot);
  bool FinishDelivery(ProcessSet& set);
  void EndDelivery(ProcessSet& set, const Status& status);
  void EndRound(ProcessSet& set, const Entry& entry);
  void AfterRound(ProcessSet& set, uint32_t slot);
  static bool HasExpress(const ProcessSet& set);
  void AnnouncePostponed(ProcessSet& set);
  static bool IsEarly(const ProcessSet& set, int member, uint32_t slot);
  static void NumberErrors(const ProcessSet& set, Record* record);
  void ApplyError(ProcessSet& set, const Record& record);
  std::vector<control::Finished> FinishedRounds() const;
  void OnBye(int from, std::string_view body);

  void Finish(std::unique_ptr<Operation> operation, const Status& status);
  void FailAll(ProcessSet& set, const Status& status);

  void Housekeep();
  void TakePulses(Clock::time_point now);
  void InspectStalls(ProcessSet& set, Clock::time_point now);
  void OnStall(ProcessSet& set, std::string_view whole, std::string_view body);
  void OnStack(ProcessSet& set, std::string_view whole, std::string_view body);
  void ShowStall(const ProcessSet& set, const std::string& name, const std::string& text) const;
  void AskForStack(const ProcessSet& set, const std::string& name);
  void ReportStack();
  void Hear(bool eager, bool* moved);
  void CheckLinks();
  void OnEnded(const Neighbour& neighbour);
  bool MeantToLeave(int rank) const;
  void LoseContact(int rank, const std::string& why);
  void OnBroken(int rank, const std::string& why);
  void OnGone(int rank, const std::string& why);
  void OnDeparture(int rank);
  void OnGoneMember(ProcessSet& set, std::string_view whole, std::string_view body);
  void CloseSet(ProcessSet& set, int rank);
  Status ShutDown(int rank) const;
  void WakeNeighbours();
  Timeline* timeline() const { return parts_.timeline->on() ? parts_.timeline : nullptr; }

  Parts parts_;
  Surroundings around_;
  Mailbox mailbox_;
  std::unique_ptr<PointToPoint> messages_;
  std::map<int, std::unique_ptr<ProcessSet>> sets_;  // those that this rank belongs to
  Tuned tuned_;
  std::unique_ptr<TuningSession> tuning_;          // the leader's, until the tuning is over
  std::map<int, std::vector<int>> foreign_;        // ranks of the others
  std::deque<std::pair<int, std::string>> early_;  // messages for a set that is not here yet, with their senders
  uint32_t newest_epoch_ = 0;
  Submissions::Batch drained_;
  std::map<int, std::string> ready_;  // cache slots to report, by set
  std::vector<std::shared_ptr<Handle>> finished_;
  std::set<int> departed_;                  // said goodbye; what they had published has been applied
  std::vector<Neighbour*> spoke_;           // over their life lines, since we last looked; in that order
  std::map<int, std::string> unexplained_;  // who left for reasons that did not reach us, and how we noticed
  Clock::time_point broken_since_;
  Heartbeats heartbeats_{std::chrono::milliseconds(parts_.settings.peer_timeout_ms)};
  std::map<int, uint64_t> pulses_;  // of neighbours, when last seen
  StackTeller stack_teller_;
  std::pair<int, std::string> stack_asked_by_;  // the set, and its tensor that waits for this rank
  Clock::time_point next_housekeeping_;
  Status aborted_;
  uint64_t rounds_ = 0, rounds_unrung_ = 0;
  std::vector<Express::Piece> parts_of_all_;  // reused
  std::atomic<uint64_t> direct_batches_{0};   // so far, for Describe
  std::atomic<uint64_t> express_runs_{0};     // so far, for Describe
  std::atomic<uint64_t> single_copy_batches_{0};
};

}  // namespace hvd
