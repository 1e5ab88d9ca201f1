// SPDX-License-Identifier: Apache-2.0
// Thread that is stopped and joined when it is destroyed or replaced. A std::thread that is destroyed or assigned to
// while it runs terminates the process instead.
#pragma once

#include <pthread.h>

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace hvd {

// An owner declares this member last, so that the thread ends before the members that it uses are destroyed.
class JoiningThread {
 public:
  JoiningThread() = default;
  // Run `body` on a new thread; `stop` must make it return soon. Throws std::system_error if no thread can be created.
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
  pthread_t handle() { return thread_.native_handle(); }  // valid only while the thread runs
  // Ask the thread to stop, then join it; when called on the thread itself, detach instead. Safe to call twice.
  void End() {
    if (!thread_.joinable()) return;
    stop_();
    if (thread_.get_id() == std::this_thread::get_id()) return thread_.detach();
    thread_.join();
  }

 private:
  // Scope in which this thread blocks all signals. A thread created in it inherits the mask, so that the kernel
  // delivers signals only to the application's threads.
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
