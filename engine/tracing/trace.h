// SPDX-License-Identifier: Apache-2.0
// Conversion of trace moments to Chrome trace events. Each tensor is a "process" whose slices nest properly, even if
// moments are missing because recording began late or could not keep up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "tracing/trace_file.h"
#include "transport/traffic.h"

namespace hvd {

// One event of a tensor, passed to the writer thread. It is plain memory, so that passing it is a copy.
struct Moment {
  enum class What : uint8_t {
    kReady,     // `rank` reported the tensor
    kAgreed,    // all ranks are ready, and the operation begins
    kActivity,  // the operation enters the phase named `text`
    kTransfer,  // bytes begin to move, over the transport named `text`
    kDone,
    kFailed,
    kLeft,  // the other ranks run it without this one, which has joined
    kCycle,
  };
  static constexpr size_t kMostDimensions = 8;
  static constexpr size_t kMostName = 192;

  What what = What::kCycle;
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  bool adasum = false;
  uint8_t dimensions = 0;  // number of dimensions; those above kMostDimensions are not stored
  uint16_t name_size = 0;
  int32_t set = 0;
  int32_t rank = 0;
  int64_t time_ns = 0;         // time on the steady clock
  const char* text = nullptr;  // a string literal
  int64_t shape[kMostDimensions];
  char name[kMostName];

  // Store the name. A long name is cut and gets a hash of the whole, so that different names stay different.
  void SetName(std::string_view tensor);
};

// Activity of the program itself, which belongs to no tensor.
struct Span {
  std::string name;
  int64_t began_ns = 0, ended_ns = 0;  // times on the steady clock
  std::string row = "(program)";
};

class Trace {
 public:
  // `file` must be open and empty. Times in the trace count from `start_ns` of the steady clock.
  Trace(TraceFile* file, int rank, int64_t start_ns, int64_t start_since_epoch_us);

  void Add(const Moment& moment);
  void Add(const Span& span);
  // Add an event to the track of each pair of byte counters that has changed since the last call.
  void Add(const TrafficSums& traffic, int64_t time_ns);
  // Record the number of dropped moments at the time of the last moment added, because later moments may already be
  // queued.
  void AddDropped(uint64_t count);
  // End every open slice.
  void Finish(int64_t time_ns);

 private:
  enum class Phase : uint8_t { kIdle, kNegotiating, kOperating };
  struct Tensor {
    int pid = 0;
    Phase phase = Phase::kIdle;
    bool in_activity = false;
    int64_t began_ns = 0;    // time at which the latest slice began
    int64_t latest_ns = 0;   // time of the latest event
    std::vector<int> early;  // ranks that reported the tensor again before it was done on this rank
  };

  Tensor& TensorNamed(const std::string& name);
  void AddTo(Tensor* tensor, const Moment& moment);
  void Ready(Tensor* tensor, const Moment& moment, int rank);
  void Operate(Tensor* tensor, const Moment& moment);
  void Activity(Tensor* tensor, const Moment& moment, const std::string& name);
  void Done(Tensor* tensor, const Moment& moment);
  void ShowEarly(Tensor* tensor, const Moment& moment);
  void Begin(Tensor* tensor, int64_t time_ns, std::string_view name);
  void End(Tensor* tensor, int64_t time_ns, std::string_view arguments = {});
  void Close(Tensor* tensor, int64_t time_ns, std::string_view arguments);
  void Describe(int pid, std::string_view name, std::string_view more);
  void Emit(char phase, int pid, int64_t time_ns, std::string_view name, std::string_view more = {});

  TraceFile* file_;
  int64_t start_ns_, last_ns_;
  int last_pid_ = 0;
  TrafficSums traffic_;  // values of the latest counter events
  std::unordered_map<std::string, Tensor> tensors_;
  std::string event_;
};

}  // namespace hvd
