// SPDX-License-Identifier: Apache-2.0
// A thread of the engine that cannot be lost: whatever destroys or replaces it, it is told to stop and waited for.
// A std::thread that is destroyed or assigned to while it runs takes the process down instead.
#pragma once

#include <pthread.h>

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace hvd {

// Whoever has one declares it last: it must end before what it works with is destroyed.
class JoiningThread {
 public:
  JoiningThread() = default;
  // Runs `body` until it returns; `stop` makes it return soon. std::system_error if no more threads can be made.
  JoiningThread(const char* name, std::function<void()> body, std::function<void()> stop) : stop_(std::move(stop)) {
    const NoSignals inherited_by_the_thread;
    thread_ = std::thread(std::move(body));
    pthread_setname_np(thread_.native_handle(), name);
  }
  JoiningThread(JoiningThread&& other) noexcept : thread_(std::move(other.thread_)), stop_(std::move(other.stop_)) {}
  JoiningThread& operator=(JoiningThread&& other) noexcept {
    if (this == &other) return *this;
    End();
    thread_ = std::move(other.thread_);
    stop_ = std::move(other.stop_);
    return *this;
  }
  ~JoiningThread() { End(); }

  bool running() const { return thread_.joinable(); }
  pthread_t handle() { return thread_.native_handle(); }  // while it runs
  // Idempotent. On the thread itself it only lets go: what is under way on it ends by itself.
  void End() {
    if (!thread_.joinable()) return;
    stop_();
    if (thread_.get_id() == std::this_thread::get_id()) return thread_.detach();
    thread_.join();
  }

 private:
  // Signals belong to the application's threads.
  class NoSignals {
   public:
    NoSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;

   private:
    sigset_t before_;
  };

  std::thread thread_;
  std::function<void()> stop_;
};

}  // namespace hvd
