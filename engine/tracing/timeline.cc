// SPDX-License-Identifier: Apache-2.0
#include "tracing/timeline.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace hvd {
namespace {

constexpr auto kFlushPeriod = std::chrono::milliseconds(50);
constexpr auto kTrafficPeriod = std::chrono::milliseconds(200);
constexpr size_t kFlushBytes = size_t{64} << 10;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Return true for the negotiated operations that the timeline shows.
bool IsShown(OpKind kind) { return MovesTensor(kind) || kind == OpKind::kBarrier; }

}  // namespace

Timeline::Timeline(int rank, size_t capacity, const Log& log) : rank_(rank), log_(log), capacity_(capacity) {}

Timeline::~Timeline() { Stop(); }

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  std::lock_guard<std::mutex> lock(life_mutex_);
  EndFile();
  Status status = file_.Open(path);
  if (!status.ok()) return status;
  if (!ring_) ring_ = std::make_unique<Moment[]>(capacity_);
  path_ = path;
  start_ns_ = Now();
  start_since_epoch_us_ =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  stop_ = false;
  dropped_.store(0, std::memory_order_relaxed);
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
  const auto stop = [this] {
    std::lock_guard<std::mutex> wake_lock(wake_mutex_);
    stop_ = true;
    wake_.notify_one();
  };
  thread_ = JoiningThread("hvd-timeline", [this] { Run(); }, stop);
  on_.store(true, std::memory_order_release);
  return status;
}

void Timeline::Stop() {
  std::lock_guard<std::mutex> lock(life_mutex_);
  EndFile();
}

void Timeline::EndFile() {
  on_.store(false, std::memory_order_release);
  if (!thread_.running()) return;
  thread_.End();
  file_.CloseDescriptor();
}

void Timeline::CloseDescriptor() {
  on_.store(false, std::memory_order_release);
  file_.CloseDescriptor();
}

void Timeline::Show(Span span) {
  if (!on()) return;
  std::lock_guard<std::mutex> lock(wake_mutex_);
  if (spans_.size() < kMostSpans) {
    spans_.push_back(std::move(span));
  } else {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

// ---- the driver's side

Moment* Timeline::Claim(Moment::What what, int set, const Request& request) {
  const uint64_t next = published_.load(std::memory_order_relaxed);
  const uint64_t waiting = next - taken_.load(std::memory_order_acquire);
  if (waiting >= capacity_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  if (waiting == capacity_ / 2) wake_.notify_one();
  Moment* moment = &ring_[next & (capacity_ - 1)];
  moment->what = what;
  moment->kind = request.kind;
  moment->adasum = request.kind == OpKind::kAllreduce && request.op == ReduceOp::kAdasum;
  moment->set = set;
  moment->time_ns = Now();
  moment->SetName(request.name);
  return moment;
}

void Timeline::Publish() { published_.fetch_add(1, std::memory_order_release); }

void Timeline::Cycle() {
  static const Request none;
  if (mark_cycles_.load(std::memory_order_relaxed) && Claim(Moment::What::kCycle, 0, none)) Publish();
}

void Timeline::Ready(int set, const Request& request, int rank) {
  if (!IsShown(request.kind)) return;
  Moment* moment = Claim(Moment::What::kReady, set, request);
  if (!moment) return;
  moment->rank = rank;
  Publish();
}

void Timeline::Add(Moment::What what, int set, const Request& request, const char* text) {
  Moment* moment = Claim(what, set, request);
  if (!moment) return;
  moment->text = text;
  Publish();
}

void Timeline::Agreed(int set, const Request& request, bool mine) {
  if (Claim(mine ? Moment::What::kAgreed : Moment::What::kLeft, set, request)) Publish();
  if (mine && request.kind == OpKind::kAllgather) Add(Moment::What::kActivity, set, request, "ALLOCATE_OUTPUT");
}

void Timeline::Queued(int set, const Request& request) { Add(Moment::What::kActivity, set, request, "QUEUE"); }

void Timeline::Transfers(int set, const Request& request, const char* transport) {
  Add(Moment::What::kTransfer, set, request, transport);
}

void Timeline::Finished(int set, const Request& request, bool ok) {
  if (!IsShown(request.kind)) return;
  Moment* moment = Claim(ok ? Moment::What::kDone : Moment::What::kFailed, set, request);
  if (!moment) return;
  moment->dtype = request.dtype;
  moment->dimensions = static_cast<uint8_t>(std::min<size_t>(request.shape.size(), 255));
  std::copy_n(request.shape.begin(), std::min(request.shape.size(), Moment::kMostDimensions), moment->shape);
  Publish();
}

// ---- the writer's side

void Timeline::Run() {
  Trace trace(&file_, rank_, start_ns_, start_since_epoch_us_);
  uint64_t told = 0;
  std::vector<Span> spans;
  auto next_traffic = std::chrono::steady_clock::now();
  if (Status status = file_.Flush(); !status.ok()) return GiveUp(status);
  for (bool last = false; !last;) {
    {
      std::unique_lock<std::mutex> lock(wake_mutex_);
      const auto half_full = [this] { return published_.load() - taken_.load() >= capacity_ / 2; };
      wake_.wait_for(lock, kFlushPeriod, [&] { return stop_ || half_full(); });
      last = stop_;
      spans.swap(spans_);
    }
    for (const Span& span : spans) trace.Add(span);
    spans.clear();
    if (!TakeAll(&trace)) return;
    const uint64_t lost = dropped();
    if (lost != told) trace.AddDropped(lost);
    told = lost;
    if (traffic_ && (last || std::chrono::steady_clock::now() >= next_traffic)) {
      trace.Add(traffic_->Load(), Now());
      next_traffic = std::chrono::steady_clock::now() + kTrafficPeriod;
    }
    if (last) trace.Finish(Now());
    if (Status status = file_.Flush(); !status.ok()) return GiveUp(status);
  }
}

bool Timeline::TakeAll(Trace* trace) {
  uint64_t next = taken_.load(std::memory_order_relaxed);
  const uint64_t end = published_.load(std::memory_order_acquire);
  while (next != end) {
    trace->Add(ring_[next & (capacity_ - 1)]);
    taken_.store(++next, std::memory_order_release);
    if (file_.pending() < kFlushBytes) continue;
    if (Status status = file_.Flush(); !status.ok()) {
      GiveUp(status);
      return false;
    }
  }
  return true;
}

void Timeline::GiveUp(const Status& status) {
  on_.store(false, std::memory_order_release);
  log_.Warn("the timeline '" + path_ + "' ends here, the job goes on: " + status.text);
}

}  // namespace hvd
