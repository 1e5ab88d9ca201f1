// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/completions.h"

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace hvd::xla {

Completions& Completions::All() {
  static Completions* all = new Completions;
  return *all;
}

void Completions::Post(std::function<void()> task) {
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push(std::move(task));
  if (idle_ >= static_cast<int>(tasks_.size()) || threads_ == kMostThreads) {
    wake_.notify_one();
    return;
  }
  ++threads_;
  // Block all signals in the new thread, because they are for the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([this] { Run(); });
  pthread_setname_np(thread.native_handle(), "hvd-xla");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Completions::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return !tasks_.empty(); });
    --idle_;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace hvd::xla
