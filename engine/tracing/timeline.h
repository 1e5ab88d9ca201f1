// SPDX-License-Identifier: Apache-2.0
// Timeline: a Chrome trace of what the engine does. The driver passes trace events through a bounded queue and never
// waits; a separate thread writes them. When the queue is full, events are dropped and counted.
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
  explicit Timeline(int rank, size_t capacity = kCapacity, const Log& log = Log());  // capacity must be a power of two
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Set the byte counters to show; call before the first Start. The writer thread reads them several times a second, so
  // that the driver does no work for them. They must outlive the timeline.
  void CountBytesOf(const Traffic* traffic) { traffic_ = traffic; }

  // Start or stop writing; any thread may call these. Start ends the previous file first and returns kFailed if the new
  // file cannot be written.
  Status Start(const std::string& path, bool mark_cycles);
  void Stop();
  // Close the file in a forked child, where the thread does not exist and the file is the parent's.
  void CloseDescriptor();

  bool on() const { return on_.load(std::memory_order_acquire); }
  Timeline* if_on() { return on() ? this : nullptr; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Show an activity of the program itself between two times of the steady clock. Any thread may call this; no effect
  // while the timeline is off.
  void Show(const std::string& name, int64_t began_ns, int64_t ended_ns) { Show(Span{name, began_ns, ended_ns}); }
  // Show an activity in the row that the span names.
  void Show(Span span);

  // Only the driver may call the methods below, and only while on().
  void Cycle();
  void Ready(int set, const Request& request, int rank);
  // Record that all members are ready. `mine` is false if this rank has joined and so does not take part.
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
  // Allocated at the first start and then kept, because a driver that saw on() may still write into it.
  std::unique_ptr<Moment[]> ring_;
  alignas(64) std::atomic<uint64_t> taken_{0};
  alignas(64) std::atomic<uint64_t> published_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> on_{false};
  std::atomic<bool> mark_cycles_{false};

  std::mutex life_mutex_;  // serialises Start and Stop
  std::string path_;
  TraceFile file_;
  int64_t start_ns_ = 0, start_since_epoch_us_ = 0;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<Span> spans_;  // activities not yet written
  JoiningThread thread_;
};

}  // namespace hvd
