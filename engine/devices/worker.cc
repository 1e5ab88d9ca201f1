// SPDX-License-Identifier: Apache-2.0
#include "devices/worker.h"

#include <exception>
#include <utility>

namespace hvd {

DeviceWorker::DeviceWorker(const char* name, std::function<void()> wake)
    : wake_(std::move(wake)),
      thread_(
          name, [this] { Run(); },
          [this] {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            changed_.notify_all();
          }) {}

std::shared_ptr<DeviceWorker::Job> DeviceWorker::Put(std::function<void()> run) { return Put(std::move(run), false); }

std::shared_ptr<DeviceWorker::Job> DeviceWorker::PutFirst(std::function<void()> run) {
  return Put(std::move(run), true);
}

std::shared_ptr<DeviceWorker::Job> DeviceWorker::Put(std::function<void()> run, bool first) {
  auto job = std::make_shared<Job>();
  job->run = std::move(run);
  std::lock_guard<std::mutex> lock(mutex_);
  first ? queue_.push_front(job) : queue_.push_back(job);
  changed_.notify_all();
  return job;
}

void DeviceWorker::Run() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      job->run();
    } catch (const std::exception& error) {
      job->error = error.what();
    }
    job->run = nullptr;  // destroy what the job holds on this thread
    job->done.store(true, std::memory_order_release);
    wake_();
  }
}

}  // namespace hvd
