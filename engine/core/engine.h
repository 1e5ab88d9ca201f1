// SPDX-License-Identifier: Apache-2.0
// The engine: takes submissions, negotiates with the other ranks through the leader of each set, and runs what was
// agreed. Progress does what is possible now and returns; only the thread that holds the driver's token calls it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agreement/control.h"
#include "agreement/departures.h"
#include "base/config.h"
#include "base/log.h"
#include "core/callers.h"
#include "core/handle.h"
#include "core/launch_slots.h"
#include "core/leaving.h"
#include "core/peer_watch.h"
#include "core/point_to_point.h"
#include "core/services.h"
#include "core/set_registry.h"
#include "core/stack_teller.h"
#include "core/submissions.h"
#include "core/watches.h"
#include "tracing/timeline.h"
#include "transport/connector.h"
#include "transport/mailbox.h"
#include "transport/neighbours.h"
#include "transport/poller.h"

namespace hvd {

// Owns the mailbox and the parts below, and the rounds in which they advance.
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

  // Run one round of everything. Return true if anything moved. `drain`: also take new submissions. `thorough`: also
  // check what is otherwise checked only now and then; required for the last round before sleeping.
  bool Progress(bool drain, bool thorough = false);
  // Return true if some ranks are reached by sockets.
  bool has_links() const { return mailbox_.has_links(); }
  // Longest time for which asynchronous work is gathered before it is announced.
  Clock::duration gathering_time() const { return sets_.tuned().cycle_time(); }
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
  // End the world because of a failure on this rank. The error of all ranks names it as lost.
  void AbortHere(const std::string& why) { Act(departures_.Lose(parts_.identity.rank, why)); }
  // End the world: every pending and later operation fails with this text, here and on every rank. Return false if the
  // world had already ended for another reason.
  bool Abort(int lost_rank, const std::string& text);

  std::string Describe() const;
  void CloseDescriptors();
  // Free memory on devices, after the last round. If the world ended normally, wait for peers that still read it.
  void LeaveDevices(Clock::time_point until);

 private:
  bool Drain();
  void Announce(Membership& membership, std::unique_ptr<Operation> operation);
  bool MayGoExpress(const Membership& membership, const Operation& operation) const;
  void AnnouncePostponed(Membership& membership);

  void OnMessage(int from, std::string_view message);
  void OnSetMessage(Membership& membership, int from, std::string_view whole, std::string_view body);
  bool Decide(Membership& membership);
  void DecideInAllSets();
  void Apply(Membership& membership, Record record);
  void ChangeSets(MemberState& state, const Entry& entry);

  void Housekeep();
  void Hear(bool eager, bool* moved);
  void CheckLinks();
  void Act(const Departures::Verdict& verdict);
  // End the world if a part of the engine has failed.
  void Act(const Status& trouble) {
    if (!trouble.ok()) Act(departures_.Judge(trouble));
  }

  Timeline* timeline() const { return parts_.timeline->if_on(); }

  Parts parts_;
  LaunchSlots launches_;
  Surroundings around_;
  Mailbox mailbox_;
  Departures departures_;
  Completions completions_;
  Counters counters_;
  Services services_;
  std::unique_ptr<PointToPoint> messages_;
  SetRegistry sets_;
  Leaving leaving_;
  PeerWatch peers_;
  Watches watches_;
  Submissions::Batch drained_;
  uint64_t rounds_ = 0, rounds_unrung_ = 0;
};

}  // namespace hvd
