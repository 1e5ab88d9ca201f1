// SPDX-License-Identifier: Apache-2.0
#include "core/driver.h"

#include <sched.h>

#include <exception>
#include <string>
#include <utility>

#include "base/cores.h"

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Queued bytes that are worth sending before the gathering time is over.
constexpr size_t kGatherBytes = size_t{8} << 20;
constexpr unsigned kSpinsBetweenClockReads = 64;
constexpr auto kYieldTime = microseconds(100);          // yield time before sleeping where cores are short
constexpr auto kYieldBeforeRinging = microseconds(20);  // time after which every ready thread has had the core
// About 10 us: enough for a peer that is in step, and cheap for computing threads.
constexpr unsigned kEngineThreadSpins = 200;
// Used where cores are short: each yield may take long, and callers want the token.
constexpr unsigned kEngineThreadYields = 2;
constexpr unsigned kTokenSpins = 4000;
// How long the engine thread waits while a caller drives, and while callers come and go (each nap costs about 40 us).
constexpr auto kAside = milliseconds(1), kLongAside = milliseconds(1000), kNap = milliseconds(1);
// About 50 us, which is how long waking takes: a peer that is in step has answered by then.
constexpr unsigned kSpinsBeforeRinging = 512;
constexpr unsigned kSettlingRounds = 8;

inline void Relax() {
#if defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // unlike yield, isb does slow the loop down on Neoverse cores
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Driver::Driver(Engine* engine, Submissions* submissions, Poller* poller, const Settings& settings)
    : engine_(engine), submissions_(submissions), poller_(poller), settings_(settings) {}

Driver::~Driver() {
  Stop([] {});
}

void Driver::Start() {
  const auto stop = [this] {
    stop_.store(true);
    poller_->bell().Force();
  };
  thread_ = JoiningThread("hvd-engine", [this] { RunThread(); }, stop);
  // Pinning works here, because World::Open has tried it.
  if (settings_.engine_core >= 0) PinThread(thread_.handle(), settings_.engine_core);
}

void Driver::Stop(const std::function<void()>& last) {
  if (!thread_.running()) return;
  waiters_.fetch_add(1);  // makes the engine thread give up the token
  while (!TryToken()) AwaitToken([] { return false; }, Clock::now() + milliseconds(50));
  try {
    last();
  } catch (const std::exception& error) {
    engine_->AbortHere(std::string("its engine failed: ") + error.what());
  }
  waiters_.fetch_sub(1);
  stop_.store(true);
  ReleaseToken();
  thread_.End();
}

// Run one round of the engine. An exception ends the world, never the process.
bool Driver::Progress(bool drain, bool thorough) {
  try {
    return engine_->Progress(drain, thorough);
  } catch (const std::exception& error) {
    engine_->AbortHere(std::string("its engine failed: ") + error.what());
    return true;
  }
}

// ---- the token

bool Driver::TryToken() { return !token_.exchange(true, std::memory_order_acquire); }

void Driver::ReleaseToken() {
  std::vector<std::shared_ptr<Handle>> finished = engine_->TakeFinished();
  const bool leaves_work = !submissions_->empty() || engine_->Hungry();
  token_.store(false, std::memory_order_seq_cst);
  WakeBlocked();
  const Aside aside = aside_.load(std::memory_order_seq_cst);
  if (aside == Aside::kToBeCalled || (leaves_work && aside != Aside::kNot)) CallAside();
  for (const auto& handle : finished) {
    if (handle->on_done) handle->on_done(*handle);
  }
}

void Driver::CallAside() {
  std::lock_guard<std::mutex> lock(turn_mutex_);
  called_ = true;
  turn_.notify_all();
}

void Driver::WakeBlocked() {
  if (blocked_.load(std::memory_order_seq_cst) == 0) return;
  std::lock_guard<std::mutex> lock(turn_mutex_);
  turn_.notify_all();
}

// Wait until the token is free, `enough` returns true, or `until` is reached.
void Driver::AwaitToken(const std::function<bool()>& enough, Clock::time_point until) {
  for (unsigned i = 0; settings_.spin_us && i < kTokenSpins; ++i) {
    if (!token_.load(std::memory_order_relaxed) || enough()) return;
    Relax();
  }
  std::unique_lock<std::mutex> lock(turn_mutex_);
  blocked_.fetch_add(1, std::memory_order_seq_cst);
  turn_.wait_until(lock, until, [&] { return !token_.load(std::memory_order_seq_cst) || enough(); });
  blocked_.fetch_sub(1, std::memory_order_seq_cst);
}

// ---- a caller that waits

bool Driver::Wait(const Handle& handle, Clock::time_point until) {
  auto done = [&handle] { return handle.done.load(std::memory_order_acquire); };
  if (done()) return true;
  waiters_.fetch_add(1, std::memory_order_relaxed);
  waits_.fetch_add(1, std::memory_order_relaxed);
  for (bool first = true; !done() && !stop_.load(std::memory_order_relaxed); first = false) {
    if (!first && Clock::now() >= until) break;
    if (!TryToken()) {
      AwaitToken(done, until);
      continue;
    }
    DriveUntilDone(handle, until);
    SettleAndRelease();
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return done();
}

void Driver::Pause() const {
  if (settings_.spin_us) {
    Relax();
  } else {
    sched_yield();
  }
}

// Return true while the caller should keep spinning. After some spins, wake peers that sleep although they have
// messages from us. Not earlier, because a wake-up costs as much as a message.
bool Driver::StillSpins(unsigned spins, Clock::time_point quiet_since) {
  if (spins == kSpinsBeforeRinging) engine_->RingUnread();
  return spins % kSpinsBetweenClockReads || Clock::now() - quiet_since <= microseconds(settings_.spin_us);
}

// Return true while the caller should keep yielding. This uses the clock instead of a count, because one yield may take
// a whole time slice.
bool Driver::StillYields(Clock::time_point quiet_since) {
  const Clock::duration quiet = Clock::now() - quiet_since;
  if (quiet > kYieldBeforeRinging) engine_->RingUnread();
  return quiet <= kYieldTime;
}

void Driver::DriveUntilDone(const Handle& handle, Clock::time_point until) {
  poller_->bell().asleep->store(Bell::kAwake, std::memory_order_relaxed);
  unsigned spins = 0;
  Clock::time_point quiet_since;
  while (!handle.done.load(std::memory_order_relaxed)) {
    if (Progress(true)) {
      if (engine_->has_finished()) WakeBlocked();
      spins = 0;
      continue;
    }
    if (spins++ == 0) quiet_since = Clock::now();
    Pause();
    if (settings_.spin_us ? StillSpins(spins, quiet_since) : StillYields(quiet_since)) continue;
    Doze(until);
    if (Clock::now() >= until) return;
    spins = 0;
  }
}

// Sleep while holding the token, unless a last thorough round finds work.
void Driver::Doze(Clock::time_point until) {
  std::atomic<uint32_t>* asleep = poller_->bell().asleep;
  asleep->store(Bell::kHungry, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  dozing_.store(true, std::memory_order_relaxed);
  if (!Progress(true, true)) poller_->Sleep(std::min(until, Clock::now() + engine_->MaximumSleep()));
  dozing_.store(false, std::memory_order_relaxed);
  asleep->store(Bell::kAwake, std::memory_order_relaxed);
  engine_->OnEvents(poller_->Collect());
}

// Release the token after the wait. First set the sleep flag, so that peers wake the engine thread, then run again to
// process what arrived before the flag was set.
void Driver::SettleAndRelease() {
  // Wake the engine thread only for work that continues over several rounds, not for single messages.
  unsigned rounds = 0;
  do {
    const uint32_t sleep = engine_->Hungry() ? Bell::kHungry : Bell::kIdle;
    poller_->bell().asleep->store(sleep, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } while (Progress(true) && ++rounds < kSettlingRounds);
  engine_->RingUnread();
  ReleaseToken();
  if (rounds == kSettlingRounds) poller_->bell().Force();
}

// ---- the engine thread

void Driver::OnSubmit() {
  // While the engine thread gathers, it looks for work by itself. A system call pays only if it sleeps or if many bytes
  // are queued.
  if (wake_on_submit_.load(std::memory_order_seq_cst)) {
    if (wake_on_submit_.exchange(false, std::memory_order_seq_cst)) poller_->bell().Force();
  } else if (submissions_->bytes() >= kGatherBytes) {
    poller_->bell().Force();
  }
}

bool Driver::GatherIsOver() const {
  return submissions_->bytes() >= kGatherBytes || Clock::now() >= submissions_->oldest() + engine_->gathering_time();
}

// Return true if the engine thread should leave the sockets to the callers. They would wake it for every message that a
// waiting caller handles anyway. So while callers come and go, it naps and only checks whether they still do; the
// wake-up eventfd still ends the nap.
bool Driver::LeavesSockets(uint64_t* seen) const {
  if (!engine_->has_links()) return false;
  const uint64_t waits = waits_.load(std::memory_order_relaxed);
  const bool served = std::exchange(*seen, waits) != waits || waiters_.load(std::memory_order_relaxed);
  return served && !poller_->Nap(kNap);
}

// Wait while a caller drives. The caller may share its core with this thread, and callers may come and go: waking this
// thread on each release would cost time, and the caller would be back before this thread runs. So a caller that has
// not driven for long releases the token without waking this thread, unless it leaves work behind, and this thread
// looks again by itself. Wake-ups that arrive meanwhile stay pending.
void Driver::StandAside(uint64_t* seen_waits) {
  const uint64_t waits = waits_.load(std::memory_order_relaxed);
  const bool stays = std::exchange(*seen_waits, waits) == waits || dozing_.load(std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(turn_mutex_);
  aside_.store(stays ? Aside::kToBeCalled : Aside::kForAMoment, std::memory_order_seq_cst);
  turn_.wait_for(lock, stays ? kLongAside : kAside,
                 [&] { return called_ || stop_.load() || (stays && !token_.load(std::memory_order_seq_cst)); });
  aside_.store(Aside::kNot, std::memory_order_seq_cst);
  called_ = false;
}

// Return how many rounds without progress the engine thread keeps the token. If nothing is under way it has nothing to
// wait for, and would only delay the next caller.
unsigned Driver::Patience() const {
  const bool waits = engine_->Hungry() || engine_->AwaitsAgreement();
  return settings_.spin_us || waits ? kEngineThreadSpins : kEngineThreadYields;
}

void Driver::RunThread() {
  std::atomic<uint32_t>* asleep = poller_->bell().asleep;
  uint64_t seen_waits = 0, seen_drives = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (LeavesSockets(&seen_waits)) continue;
    if (!TryToken()) {
      StandAside(&seen_drives);
      continue;
    }
    // Stop() sets its flag while it holds the token and wakes this thread afterwards. Check the flag here, because the
    // code below may clear that wake-up without seeing it.
    if (stop_.load(std::memory_order_relaxed)) return ReleaseToken();
    engine_->OnEvents(poller_->Collect());
    for (unsigned quiet = 0; quiet < Patience() && waiters_.load(std::memory_order_relaxed) == 0; ++quiet) {
      if (Progress(!submissions_->empty() && GatherIsOver())) quiet = 0;
      if (quiet == 1) engine_->RingUnread();
      if (engine_->has_finished()) break;  // callbacks run only after the token has been released
      Pause();
    }
    const bool gathering = !submissions_->empty();
    wake_on_submit_.store(!gathering, std::memory_order_seq_cst);
    asleep->store(engine_->Hungry() ? Bell::kHungry : Bell::kIdle, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool missed = !gathering && !submissions_->empty();  // submitted just before the flag was set
    const bool more = Progress(false, true) || engine_->has_finished() || missed;
    Clock::time_point until = Clock::now() + engine_->MaximumSleep();
    if (gathering) until = std::min(until, submissions_->oldest() + engine_->gathering_time());
    ReleaseToken();
    if (!more) poller_->Sleep(until);
  }
}

}  // namespace hvd
