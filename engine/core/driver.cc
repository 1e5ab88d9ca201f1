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

constexpr size_t kGatherBytes = size_t{8} << 20;  // this much is worth sending before the gathering time is over
constexpr unsigned kSpinsBetweenClockReads = 64;
constexpr auto kYieldTime = microseconds(100);          // when cores are short: let others run before sleeping
constexpr auto kYieldBeforeRinging = microseconds(20);  // whoever computes has been given the core by then
constexpr unsigned kEngineThreadSpins = 200;  // about 10 us: long enough for a peer in step, no burden on compute
constexpr unsigned kEngineThreadYields = 2;   // where cores are short: each may take long, and callers want the token
constexpr unsigned kTokenSpins = 4000;
// Of the engine thread: while a caller drives, and while callers come and go (each nap costs some 40 us).
constexpr auto kAside = milliseconds(1), kLongAside = milliseconds(1000), kNap = milliseconds(1);
// Some 50 us, as long as waking takes: a peer in step has answered by then.
constexpr unsigned kSpinsBeforeRinging = 512;
constexpr unsigned kSettlingRounds = 8;

inline void Relax() {
#if defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // unlike yield, it does slow the loop down on Neoverse cores
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
  // It can be pinned there: World::Open has tried.
  if (settings_.engine_core >= 0) PinThread(thread_.handle(), settings_.engine_core);
}

void Driver::Stop(const std::function<void()>& last) {
  if (!thread_.running()) return;
  waiters_.fetch_add(1);  // the engine thread yields
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

// An engine error ends the world, never the process.
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

// Until the token is free, `enough` holds, or `until`.
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

// Peers that sleep on messages of ours are woken when they do not answer at once: a ring costs as much as a message.
bool Driver::StillSpins(unsigned spins, Clock::time_point quiet_since) {
  if (spins == kSpinsBeforeRinging) engine_->RingUnread();
  return spins % kSpinsBetweenClockReads || Clock::now() - quiet_since <= microseconds(settings_.spin_us);
}

// By the clock and not by their number: from one yield a thread may come back a whole time slice later.
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

// Sleeps with the token held, unless a last look finds work.
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

// Before a caller goes: raise the flag so that peers wake the engine thread, and look once more for what came before.
void Driver::SettleAndRelease() {
  // A message that merely had to be noted is not a reason to wake the engine thread; work that goes on and on is.
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
  // While it gathers, the thread will look by itself; only a deep sleeper, or a full basket, is worth a system call.
  if (wake_on_submit_.load(std::memory_order_seq_cst)) {
    if (wake_on_submit_.exchange(false, std::memory_order_seq_cst)) poller_->bell().Force();
  } else if (submissions_->bytes() >= kGatherBytes) {
    poller_->bell().Force();
  }
}

bool Driver::GatherIsOver() const {
  return submissions_->bytes() >= kGatherBytes || Clock::now() >= submissions_->oldest() + engine_->gathering_time();
}

// Sockets would wake the engine thread for every message that a waiting caller deals with anyway. So while callers come
// and go it only looks now and then whether they still do; the bell wakes it as ever.
bool Driver::LeavesSockets(uint64_t* seen) const {
  if (!engine_->has_links()) return false;
  const uint64_t waits = waits_.load(std::memory_order_relaxed);
  const bool served = std::exchange(*seen, waits) != waits || waiters_.load(std::memory_order_relaxed);
  return served && !poller_->Nap(kNap);
}

// A caller drives. It may share its core with this thread, and callers may come and go: each would pay for a wake-up
// when it goes, and be back before this thread runs. So whoever has not been here long leaves without a word, unless it
// leaves work behind, and this thread looks again by itself. What rings the bell meanwhile stays to be seen.
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

// How many quiet rounds the engine thread stays. With nothing under way it has nothing to wait for, and would only be
// in the way of the next caller.
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
    // Stop() sets its flag with the token held and rings afterwards: seen here, the ring may be silenced below unheard.
    if (stop_.load(std::memory_order_relaxed)) return ReleaseToken();
    engine_->OnEvents(poller_->Collect());
    for (unsigned quiet = 0; quiet < Patience() && waiters_.load(std::memory_order_relaxed) == 0; ++quiet) {
      if (Progress(!submissions_->empty() && GatherIsOver())) quiet = 0;
      if (quiet == 1) engine_->RingUnread();
      if (engine_->has_finished()) break;  // callbacks wait for the token's release
      Pause();
    }
    const bool gathering = !submissions_->empty();
    wake_on_submit_.store(!gathering, std::memory_order_seq_cst);
    asleep->store(engine_->Hungry() ? Bell::kHungry : Bell::kIdle, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool missed = !gathering && !submissions_->empty();  // queued just before the flag went up
    const bool more = Progress(false, true) || engine_->has_finished() || missed;
    Clock::time_point until = Clock::now() + engine_->MaximumSleep();
    if (gathering) until = std::min(until, submissions_->oldest() + engine_->gathering_time());
    ReleaseToken();
    if (!more) poller_->Sleep(until);
  }
}

}  // namespace hvd
