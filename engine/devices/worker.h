// SPDX-License-Identifier: Apache-2.0
// Thread for operations that may block: allocating, mapping, loading, and copies that the host waits for. The thread
// that drives the engine must not run them, because its heartbeats would stop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/joining_thread.h"

namespace hvd {

class DeviceWorker {
 public:
  struct Job {
    std::function<void()> run;
    std::string error;  // set before `done`; empty on success
    std::atomic<bool> done{false};
  };

  // `wake` is called after each job.
  DeviceWorker(const char* name, std::function<void()> wake);
  std::shared_ptr<Job> Put(std::function<void()> run);
  // Queue a job before all waiting ones.
  std::shared_ptr<Job> PutFirst(std::function<void()> run);

 private:
  void Run();
  std::shared_ptr<Job> Put(std::function<void()> run, bool first);

  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool stop_ = false;
  JoiningThread thread_;
};

}  // namespace hvd
