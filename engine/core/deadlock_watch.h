// SPDX-License-Identifier: Apache-2.0
// Detection of ranks that wait for each other. A thread that has only waited for a while is reported to the leader of
// the set in which it waits. This leader adds the ranks that are missing and forwards the report to the global leader,
// which sees all sets. The global leader sends each deadlock it finds to all ranks, and the leaders of the sets fail
// the stuck operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "agreement/deadlocks.h"
#include "core/callers.h"
#include "core/services.h"
#include "core/set_registry.h"
#include "core/stack_teller.h"

namespace hvd {

// Owns what this rank has reported about its waiting threads, the open question about one of them, and, at the global
// leader, what all ranks have reported.
class DeadlockWatch {
 public:
  using Clock = StackTeller::Clock;

  // `teller` describes one thread of the program: see hvd_api's tell_block. All other arguments must outlive this
  // object.
  DeadlockWatch(const StackTeller& teller, const Callers* callers, SetRegistry* sets, const Services* services);

  // Report threads that have been blocked for a while, and find deadlocks. Return true if that has failed operations,
  // which the sets' coordinators now decide.
  bool Look(Clock::time_point now);
  // Return the latest time for the next Look.
  Clock::time_point NextLook(Clock::time_point now) const;
  // Process a message of type kBlock, kWait or kDeadlock. Return true if it has failed operations.
  bool OnMessage(Membership& membership, std::string_view whole, std::string_view body);
  // Note that a rank has left. Operations that wait for it fail anyway.
  void Forget(int rank) { deadlocks_.Forget(rank); }

  // True while the program has not described a thread yet.
  bool asks() const { return teller_.asked(); }
  // Report the thread that the program has described, if it has.
  void ReadAnswer();

 private:
  // What this rank has reported about a thread that waits.
  struct Reported {
    int64_t handle = 0;
    Clock::time_point next;    // when to report the thread again
    Clock::duration pause{0};  // time between the last report and the next
    bool others_are_idle = false;
  };

  std::chrono::milliseconds limit() const { return std::chrono::milliseconds(services_.settings->deadlock_ms); }
  bool is_on() const { return limit().count() > 0 && sets_.global().set.ranks().size() > 1; }
  bool AnybodyBlocked() const;
  bool OthersHaveCalled(const Reported& reported, const Callers::Waiting& waiting) const;
  void ReportEnds(const std::vector<Callers::Waiting>& waiting);
  void Report(const Callers::Waiting& waiting, std::string_view answer, Clock::time_point now);
  Block DescribeBlock(const Callers::Waiting& waiting, std::string_view answer, const ProcessSet& set,
                      const Operation& operation);
  void AddMissing(const Membership& membership, Block block);
  void SendToGlobalLeader(Block block);
  void Collect(Block block);
  bool Handle(const Deadlock& deadlock);
  static void FailStuck(Membership& membership, const Deadlock& deadlock);

  StackTeller teller_;
  const Callers& callers_;
  SetRegistry& sets_;
  const Services& services_;
  std::map<uint64_t, Reported> reported_;  // by thread
  uint64_t reports_ = 0;
  Callers::Waiting asked_about_;
  Deadlocks deadlocks_;  // used by the global leader only
};

}  // namespace hvd
