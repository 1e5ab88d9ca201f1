// SPDX-License-Identifier: Apache-2.0
#include "tracing/trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

namespace hvd {
namespace {

constexpr size_t kKeptOfLongName = 160;
constexpr int kThread = 1;  // viewers take 0 for the idle thread of the machine

std::string OperationName(const Moment& moment) { return moment.adasum ? "ADASUM" : NameOf(moment.kind); }

// Return the name of a transfer, spelled like Horovod's activities.
std::string TransferName(const Moment& moment) {
  const std::string transport = std::string(moment.text) + "_";
  if (moment.adasum) return transport + "ADASUM_ALLREDUCE";
  return transport + (moment.kind == OpKind::kBroadcast ? "BCAST" : NameOf(moment.kind));
}

std::string Arguments(const Moment& moment) {
  std::string text = std::string(",\"args\":{\"dtype\":\"") + NameOf(moment.dtype) + "\",\"shape\":\"[";
  const size_t told = std::min<size_t>(moment.dimensions, Moment::kMostDimensions);
  for (size_t i = 0; i < told; ++i) text += (i ? ", " : "") + std::to_string(moment.shape[i]);
  if (told < moment.dimensions) text += ", ...";
  return text + "]\"}";
}

// Two byte counters that share a track.
struct CounterTrack {
  const char *name, *first_name, *second_name;
  uint64_t TrafficSums::* first;
  uint64_t TrafficSums::* second;
  bool is_data;
};
constexpr CounterTrack kCounterTracks[] = {
    {"data bytes", "sent", "received", &TrafficSums::data_sent, &TrafficSums::data_received, true},
    {"control bytes", "sent", "received", &TrafficSums::control_sent, &TrafficSums::control_received, false},
    {"shared memory bytes", "read", "written", &TrafficSums::memory_read, &TrafficSums::memory_written, false},
};

// Return true if the name was generated, so that it never occurs again.
bool IsNumbered(std::string_view name) { return name.find(".noname.") != std::string_view::npos; }

}  // namespace

void Moment::SetName(std::string_view tensor) {
  if (tensor.size() <= kMostName) {
    std::memcpy(name, tensor.data(), tensor.size());
    name_size = static_cast<uint16_t>(tensor.size());
    return;
  }
  size_t kept = kKeptOfLongName;
  // Shorten the name further if the cut would be inside a UTF-8 character.
  while (kept > 0 && (static_cast<unsigned char>(tensor[kept]) & 0xc0) == 0x80) --kept;
  std::memcpy(name, tensor.data(), kept);
  const size_t hash = std::hash<std::string_view>()(tensor);
  const int more = std::snprintf(name + kept, kMostName - kept, "...#%016zx", hash);
  name_size = static_cast<uint16_t>(kept + static_cast<size_t>(more));
}

Trace::Trace(TraceFile* file, int rank, int64_t start_ns, int64_t start_since_epoch_us)
    : file_(file), start_ns_(start_ns), last_ns_(start_ns) {
  Describe(0, "rank " + std::to_string(rank),
           ",\"rank\":" + std::to_string(rank) +
               ",\"start_time_since_epoch_in_micros\":" + std::to_string(start_since_epoch_us));
}

void Trace::Add(const Moment& moment) {
  if (moment.time_ns < start_ns_) return;  // ignore moments that are left over from an earlier recording
  last_ns_ = moment.time_ns;
  if (moment.what == Moment::What::kCycle) return Emit('i', 0, moment.time_ns, "CYCLE_START", ",\"s\":\"g\"");
  std::string name(moment.name, moment.name_size);
  if (moment.set != 0) name += " (process set " + std::to_string(moment.set) + ")";
  Tensor& tensor = TensorNamed(name);
  AddTo(&tensor, moment);
  if (tensor.phase == Phase::kIdle && IsNumbered(name)) tensors_.erase(name);
}

Trace::Tensor& Trace::TensorNamed(const std::string& name) {
  Tensor& tensor = tensors_[name];
  if (tensor.pid == 0) {
    tensor.pid = ++last_pid_;
    Describe(tensor.pid, name, {});
  }
  return tensor;
}

// Add a span as one complete event, because it may be added long after it began, when later moments have been written.
void Trace::Add(const Span& span) {
  if (span.began_ns < start_ns_) return;
  const int64_t took_ns = std::max<int64_t>(span.ended_ns - span.began_ns, 0);
  char more[48];
  std::snprintf(more, sizeof more, ",\"dur\":%lld.%03d", static_cast<long long>(took_ns / 1000),
                static_cast<int>(took_ns % 1000));
  std::string quoted;
  AppendJsonString(span.name, &quoted);
  // Remove the quotes, because Emit adds them.
  const std::string_view name = std::string_view(quoted).substr(1, quoted.size() - 2);
  Emit('X', TensorNamed(span.row).pid, span.began_ns, name, more);
}

// Show the counters as a separate process. The times of one process's events must ascend, and moments from before
// `time_ns` may still be queued.
void Trace::Add(const TrafficSums& traffic, int64_t time_ns) {
  for (const CounterTrack& track : kCounterTracks) {
    const uint64_t first = traffic.*track.first, second = traffic.*track.second;
    if (first == traffic_.*track.first && second == traffic_.*track.second) continue;
    if (track.is_data && !traffic.data_is_known) continue;
    const std::string values = std::string(",\"args\":{\"") + track.first_name + "\":" + std::to_string(first) + ",\"" +
                               track.second_name + "\":" + std::to_string(second) + "}";
    Emit('C', TensorNamed("(bytes)").pid, time_ns, track.name, values);
  }
  traffic_ = traffic;
}

void Trace::AddTo(Tensor* tensor, const Moment& moment) {
  switch (moment.what) {
    case Moment::What::kReady:
      return Ready(tensor, moment, moment.rank);
    case Moment::What::kAgreed:
      return Operate(tensor, moment);
    case Moment::What::kActivity:
      return Activity(tensor, moment, moment.text);
    case Moment::What::kTransfer:
      return Activity(tensor, moment, TransferName(moment));
    case Moment::What::kDone:
      return Done(tensor, moment);
    case Moment::What::kFailed:
      Close(tensor, moment.time_ns, ",\"args\":{\"failed\":true}");
      return ShowEarly(tensor, moment);
    default:
      return Close(tensor, moment.time_ns, {});
  }
}

void Trace::Ready(Tensor* tensor, const Moment& moment, int rank) {
  if (tensor->phase == Phase::kOperating) return tensor->early.push_back(rank);
  if (tensor->phase == Phase::kIdle) {
    Begin(tensor, moment.time_ns, "NEGOTIATE_" + OperationName(moment));
    tensor->phase = Phase::kNegotiating;
  }
  Emit('X', tensor->pid, std::max(moment.time_ns, tensor->latest_ns), std::to_string(rank), ",\"dur\":0");
}

void Trace::Operate(Tensor* tensor, const Moment& moment) {
  Close(tensor, moment.time_ns, {});
  tensor->early.clear();
  Begin(tensor, moment.time_ns, OperationName(moment));
  tensor->phase = Phase::kOperating;
}

void Trace::Activity(Tensor* tensor, const Moment& moment, const std::string& name) {
  if (tensor->phase != Phase::kOperating) return;
  if (tensor->in_activity) End(tensor, moment.time_ns);
  Begin(tensor, moment.time_ns, name);
  tensor->in_activity = true;
}

void Trace::Done(Tensor* tensor, const Moment& moment) {
  if (tensor->phase == Phase::kIdle) return;
  // A barrier is done as soon as all ranks are ready.
  if (tensor->phase == Phase::kNegotiating) Operate(tensor, moment);
  Close(tensor, moment.time_ns, Arguments(moment));
  ShowEarly(tensor, moment);
}

// Show the reports of quick ranks that announced this tensor for the next step while it was still running here. They
// were held back, because their slices would have crossed this one.
void Trace::ShowEarly(Tensor* tensor, const Moment& moment) {
  std::vector<int> early;
  early.swap(tensor->early);
  for (int rank : early) Ready(tensor, moment, rank);
}

void Trace::Begin(Tensor* tensor, int64_t time_ns, std::string_view name) {
  tensor->began_ns = tensor->latest_ns = std::max(time_ns, tensor->latest_ns);
  Emit('B', tensor->pid, tensor->began_ns, name);
}

// End a slice at least 1 ns after its beginning: viewers sort by time and put an end before a beginning of equal time.
void Trace::End(Tensor* tensor, int64_t time_ns, std::string_view arguments) {
  tensor->latest_ns = std::max({time_ns, tensor->latest_ns, tensor->began_ns + 1});
  Emit('E', tensor->pid, tensor->latest_ns, {}, arguments);
}

void Trace::Close(Tensor* tensor, int64_t time_ns, std::string_view arguments) {
  if (tensor->in_activity) End(tensor, time_ns);
  if (tensor->phase != Phase::kIdle) End(tensor, time_ns, arguments);
  tensor->in_activity = false;
  tensor->phase = Phase::kIdle;
}

void Trace::AddDropped(uint64_t count) {
  Emit('C', 0, last_ns_, "dropped moments", ",\"args\":{\"count\":" + std::to_string(count) + "}");
}

void Trace::Finish(int64_t time_ns) {
  for (auto& [name, tensor] : tensors_) Close(&tensor, time_ns, {});
}

void Trace::Describe(int pid, std::string_view name, std::string_view more) {
  const std::string head = "{\"ph\":\"M\",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(kThread);
  event_ = head + ",\"name\":\"process_name\",\"args\":{\"name\":";
  AppendJsonString(name, &event_);
  event_.append(more).append("}}");
  file_->Add(event_);
  file_->Add(head + ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(pid) + "}}");
}

void Trace::Emit(char phase, int pid, int64_t time_ns, std::string_view name, std::string_view more) {
  const int64_t since = std::max<int64_t>(time_ns - start_ns_, 0);
  char head[96];
  std::snprintf(head, sizeof head, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03d", phase, pid, kThread,
                static_cast<long long>(since / 1000), static_cast<int>(since % 1000));
  event_ = head;
  if (!name.empty()) event_.append(",\"name\":\"").append(name).append("\"");
  event_.append(more).append("}");
  file_->Add(event_);
}

}  // namespace hvd
