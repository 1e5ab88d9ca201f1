// SPDX-License-Identifier: Apache-2.0
// The timeline: what the engine does, as a Chrome trace. The driver hands moments over through a bounded queue and
// never waits; a thread of its own writes them. When the queue is full, moments are dropped and counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agreement/message.h"
#include "base/joining_thread.h"
#include "base/log.h"
#include "tracing/trace.h"
#include "transport/traffic.h"

namespace hvd {

class Timeline {
 public:
  static constexpr size_t kCapacity = size_t{1} << 14;
  static constexpr size_t kMostSpans = 4096;
  explicit Timeline(int rank, size_t capacity = kCapacity, const Log& log = Log());  // a power of two
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Sets the byte counters to show; call it before the first Start. The writer's thread reads them several times a
  // second, so the driver does no work for them. The counters must outlive the timeline.
  void CountBytesOf(const Traffic* traffic) { traffic_ = traffic; }

  // Any thread. Start ends what was being written before; kFailed if the file cannot be written.
  Status Start(const std::string& path, bool mark_cycles);
  void Stop();
  // In a forked child: the thread does not exist here, and the file is the parent's.
  void CloseDescriptor();

  bool on() const { return on_.load(std::memory_order_acquire); }
  Timeline* if_on() { return on() ? this : nullptr; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Any thread: what the program did itself, between two times of the steady clock. Nothing while it is off.
  void Show(const std::string& name, int64_t began_ns, int64_t ended_ns) { Show(Span{name, began_ns, ended_ns}); }
  // The same of others, in rows of their own.
  void Show(Span span);

  // The driver alone, and only while on().
  void Cycle();
  void Ready(int set, const Request& request, int rank);
  // All members are ready. `mine`: this rank takes part, it has not joined.
  void Agreed(int set, const Request& request, bool mine);
  void Queued(int set, const Request& request);
  void Transfers(int set, const Request& request, const char* transport);
  void Finished(int set, const Request& request, bool ok);

 private:
  Moment* Claim(Moment::What what, int set, const Request& request);
  void Add(Moment::What what, int set, const Request& request, const char* text);
  void Publish();
  void EndFile();
  void Run();
  bool TakeAll(Trace* trace);
  void GiveUp(const Status& status);

  const int rank_;
  const Log log_;
  const Traffic* traffic_ = nullptr;
  const size_t capacity_;
  std::unique_ptr<Moment[]> ring_;  // kept from the first start on: a driver that saw on() may still write into it
  alignas(64) std::atomic<uint64_t> taken_{0};
  alignas(64) std::atomic<uint64_t> published_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> on_{false};
  std::atomic<bool> mark_cycles_{false};

  std::mutex life_mutex_;  // Start and Stop
  std::string path_;
  TraceFile file_;
  int64_t start_ns_ = 0, start_since_epoch_us_ = 0;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<Span> spans_;  // not written yet
  JoiningThread thread_;
};

}  // namespace hvd
