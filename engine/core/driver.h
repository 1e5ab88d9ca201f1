// SPDX-License-Identifier: Apache-2.0
// Decides which thread drives the engine. There is one token: a caller that waits takes it and runs the engine itself,
// which avoids a hand-over between threads. When no caller waits, the engine thread holds the token while there is
// work. A caller may sleep while it holds the token; the engine thread never does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/config.h"
#include "base/joining_thread.h"
#include "core/engine.h"
#include "core/submissions.h"
#include "transport/poller.h"

namespace hvd {

class Driver {
 public:
  using Clock = std::chrono::steady_clock;

  Driver(Engine* engine, Submissions* submissions, Poller* poller, const Settings& settings);
  ~Driver();

  void Start();
  // Run `last` under the token, then end the engine thread, even if `last` throws. Safe to call twice.
  void Stop(const std::function<void()>& last);

  // Note that new work is queued and that no caller has promised to wait for it.
  void OnSubmit();
  // Drive the engine until `handle` is done or `until` is reached. Return true if it is done.
  bool Wait(const Handle& handle, Clock::time_point until);

 private:
  bool Progress(bool drain, bool thorough = false);
  bool TryToken();
  void AwaitToken(const std::function<bool()>& enough, Clock::time_point until);
  void ReleaseToken();
  void DriveUntilDone(const Handle& handle, Clock::time_point until);
  void Doze(Clock::time_point until);
  void SettleAndRelease();
  void StandAside(uint64_t* seen_waits);
  void CallAside();
  unsigned Patience() const;
  void RunThread();
  bool LeavesSockets(uint64_t* seen) const;
  bool GatherIsOver() const;
  void WakeBlocked();
  void Pause() const;
  bool StillSpins(unsigned spins, Clock::time_point quiet_since);
  bool StillYields(Clock::time_point quiet_since);

  Engine* engine_;
  Submissions* submissions_;
  Poller* poller_;
  Settings settings_;
  std::atomic<bool> token_{false};
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> waits_{0};  // number of waits that callers have begun
  std::atomic<int> blocked_{0};     // number of callers asleep in `turn_`
  enum class Aside { kNot, kForAMoment, kToBeCalled };
  std::atomic<Aside> aside_{Aside::kNot};  // how the engine thread waits in `turn_`
  std::atomic<bool> dozing_{false};        // true while the caller that holds the token sleeps
  bool called_ = false;                    // true if the engine thread was woken; guarded by `turn_mutex_`
  std::atomic<bool> wake_on_submit_{false};
  std::atomic<bool> stop_{false};
  std::mutex turn_mutex_;
  std::condition_variable turn_;
  JoiningThread thread_;
};

}  // namespace hvd
