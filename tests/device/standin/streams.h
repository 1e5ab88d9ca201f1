// SPDX-License-Identifier: Apache-2.0
// Streams that run concurrently with their callers: each has a thread that runs its tasks in order. With
// STANDIN_DELAY_US each task is delayed by up to that time, so that a missing wait shows as wrong data.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "faults.h"
#include "shared.h"

namespace standin {

inline long Variable(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

// Poll with increasing pauses, because nothing wakes a process that waits for another one.
template <typename Condition>
void Await(Condition condition) {
  for (long pause_us = 20; !condition(); pause_us = std::min(2 * pause_us, 1000L)) {
    std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  }
}

class Stream {
 public:
  // The thread lives until the stream's tasks are done, and is never joined: it waits indefinitely if a task waits for
  // an event that a dead process would have recorded.
  explicit Stream(int device) : device_(device), queue_(std::make_shared<Queue>()) {
    static std::atomic<uint64_t> numbers{0};
    const auto rank = static_cast<uint64_t>(Variable("HOROVOD_RANK", 0));
    const uint64_t seed = static_cast<uint64_t>(Variable("STANDIN_SEED", 1)) * 1000003 + rank * 1009 + numbers++;
    std::thread(Run, queue_, seed).detach();
  }
  ~Stream() {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->ended = true;
    queue_->changed.notify_all();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }

  // Add a task that is skipped once a kernel has failed. Then an event that would have been recorded never is.
  void Put(std::function<void()> task) {
    PutWaiting([task = std::move(task)] { Faults::Get().WhileWhole(task); });
  }

  // Add a task that waits, and that checks itself whether a kernel has failed.
  void PutWaiting(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
    ++queue_->put;
    queue_->changed.notify_all();
  }

  bool IsDone() const {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    return queue_->done == queue_->put;
  }

  // Run the task now if the stream is idle, as a device would, however busy the host is. Return false if it is not
  // idle.
  bool DoIfIdle(const std::function<void()>& task) {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    if (queue_->done < queue_->put) return false;
    Faults::Get().WhileWhole(task);
    return true;
  }

  // Wait until all earlier tasks are done, or until a kernel has failed.
  void Wait() const { queue()->Wait(); }

  // The tasks of a stream. A thread that waits for them may outlive the stream.
  class Queue {
   public:
    void Wait() {
      std::unique_lock<std::mutex> lock(mutex);
      const uint64_t last = put;
      while (done < last && !Faults::Get().broken()) changed.wait_for(lock, std::chrono::milliseconds(10));
    }

   private:
    friend class Stream;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    uint64_t put = 0, done = 0;
    bool ended = false;
  };
  std::shared_ptr<Queue> queue() const { return queue_; }

 private:
  static void Run(std::shared_ptr<Queue> queue, uint64_t seed) {
    const long most_us = Variable("STANDIN_DELAY_US", 0);
    std::mt19937_64 random(seed);
    std::unique_lock<std::mutex> lock(queue->mutex);
    for (;;) {
      queue->changed.wait(lock, [&] { return queue->ended || !queue->tasks.empty(); });
      if (queue->tasks.empty()) return;
      std::function<void()> task = std::move(queue->tasks.front());
      queue->tasks.pop_front();
      lock.unlock();
      if (most_us > 0) {
        const auto late = static_cast<long>(random() % static_cast<uint64_t>(most_us));
        std::this_thread::sleep_for(std::chrono::microseconds(late));
      }
      if (!Faults::Get().broken()) task();
      task = nullptr;
      lock.lock();
      ++queue->done;
      queue->changed.notify_all();
    }
  }

  int device_;
  std::shared_ptr<Queue> queue_;
};

// Event: how often it was recorded, and up to which record all earlier work is done. The memory may be shared.
class Event {
 public:
  Event(int device, std::shared_ptr<Shared> memory, bool timed)
      : device_(device), timed_(timed), memory_(std::move(memory)) {}

  int device() const { return device_; }
  const std::shared_ptr<Shared>& memory() const { return memory_; }

  void Record(Stream* stream) const {
    const uint64_t number = counters().recorded.fetch_add(1) + 1;
    const auto task = [memory = memory_, number] {
      Of(*memory).at_ns.store(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
      std::atomic<uint64_t>& done = Of(*memory).done;
      for (uint64_t before = done.load(); before < number && !done.compare_exchange_weak(before, number);) {
      }
    };
    // The timeline synchronises a device's clock with such an event, and gives up after 20 ms.
    if (!timed_ || !stream->DoIfIdle(task)) stream->Put(task);
  }

  // Make the stream wait for the latest record, but not for later ones. Do nothing if the event was never recorded.
  void KeepWaiting(Stream* stream) const {
    const uint64_t number = counters().recorded.load();
    if (number == 0) return;
    stream->PutWaiting([memory = memory_, number] {
      Await([&] { return Of(*memory).done.load() >= number || Faults::Get().broken(); });
    });
  }

  bool IsDone() const { return counters().done.load() >= counters().recorded.load(); }
  int64_t at_ns() const { return counters().at_ns.load(); }

 private:
  struct Counters {
    std::atomic<uint64_t> recorded, done;
    std::atomic<int64_t> at_ns;
  };
  static Counters& Of(const Shared& memory) { return *reinterpret_cast<Counters*>(memory.data()); }
  Counters& counters() const { return Of(*memory_); }

  int device_;
  bool timed_;
  std::shared_ptr<Shared> memory_;
};

}  // namespace standin
