// SPDX-License-Identifier: Apache-2.0
// The threads of this process that call the engine: the only one that has ever submitted, the only one that has ever
// called at all, and those that do nothing but wait. All methods may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/handle.h"

namespace hvd {

class Callers {
 public:
  using Clock = std::chrono::steady_clock;

  // A thread that waits for a handle and does nothing else until the handle is done.
  struct Waiting {
    uint64_t thread = 0;  // number that the program gave the thread
    uint64_t caller = 0;  // number that this class gave the thread
    std::shared_ptr<Handle> handle;
    Clock::time_point since;
  };

  // Record that this thread submits something. `for_others`: it submits for a framework, whose other threads may also
  // submit.
  void OnSubmit(bool for_others) {
    const uint64_t me = for_others ? kSeveral : ThisThread();
    Note(&only_, me);
    Note(&only_caller_, me);
  }
  // Record that this thread waits for an operation or polls one.
  void OnWait() { Note(&only_caller_, ThisThread()); }
  // Return true if only the thread with the number `caller` has ever submitted anything.
  bool IsOnly(uint64_t caller) const { return only_.load(std::memory_order_relaxed) == caller; }
  // Return true if no thread but `caller` has ever submitted, waited or polled. Threads that have ended count too.
  bool IsOnlyCaller(uint64_t caller) const { return only_caller_.load(std::memory_order_relaxed) == caller; }

  void Block(uint64_t thread, std::shared_ptr<Handle> handle) {
    OnWait();
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_[thread] = {thread, ThisThread(), std::move(handle), Clock::now()};
    any_.store(true, std::memory_order_relaxed);
  }
  void Unblock(uint64_t thread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(thread);
    any_.store(!waiting_.empty(), std::memory_order_relaxed);
  }
  bool any_waits() const { return any_.load(std::memory_order_relaxed); }
  std::vector<Waiting> AllWaiting() const {
    std::vector<Waiting> all;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [thread, one] : waiting_) all.push_back(one);
    return all;
  }

 private:
  static constexpr uint64_t kSeveral = UINT64_MAX;

  // Return a number for this thread. Unlike addresses and system thread ids, it is never reused.
  static uint64_t ThisThread() {
    static std::atomic<uint64_t> last{0};
    thread_local const uint64_t mine = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return mine;
  }

  // Keep the number of the thread that does something, until a second thread does it; then keep kSeveral.
  static void Note(std::atomic<uint64_t>* only, uint64_t me) {
    uint64_t known = only->load(std::memory_order_relaxed);
    if (known == me || (known == 0 && only->compare_exchange_strong(known, me, std::memory_order_relaxed))) return;
    if (known != me) only->store(kSeveral, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> only_{0};         // number of the only thread that has submitted; 0: none yet
  std::atomic<uint64_t> only_caller_{0};  // number of the only thread that has called in any way; 0: none yet
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<uint64_t, Waiting> waiting_;  // waiting threads by the program's number
};

}  // namespace hvd
