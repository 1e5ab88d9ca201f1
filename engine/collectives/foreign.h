// SPDX-License-Identifier: Apache-2.0
// Collectives that another library, such as MPI, executes. A state machine queues a job and then polls whether it is
// done. A thread outside the engine takes the jobs in order and runs them, never while holding the driver's token. Jobs
// use buffers of their own, because they cannot be cancelled: after a failure, the other library may still write when
// the callers' tensors have been freed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "collectives/machine.h"

namespace hvd {

// Buffer that is not zero-initialised.
struct Staging {
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

struct ForeignJob {
  int64_t id = 0;
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;       // for a broadcast, the index of the root in the set
  uint32_t group = 0;  // the epoch of the process set
  std::vector<int32_t> members;
  std::vector<int64_t> sent, received;  // numbers of elements to and from each member
  size_t in_bytes = 0, out_bytes = 0;   // buffer sizes; if in_bytes is 0, `out` holds the input too
  Staging in, out;
  // `load` copies the callers' tensors to `in` or `out`, and `unload` copies `out` to them.
  std::function<void(ForeignJob&)> load, unload;

  enum class State { kWaits, kDone, kFailed };
  std::atomic<State> state{State::kWaits};
  std::string error;     // set before `state` becomes kFailed
  std::mutex mutex;      // held while the callers' tensors are accessed
  bool revoked = false;  // true if the callers' tensors must not be accessed any more

  std::byte* begin() { return in_bytes ? in.data.get() : out.data.get(); }
  void Revoke();
};

class ForeignJobs {
 public:
  // `wake` is called after a job is done.
  explicit ForeignJobs(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~ForeignJobs();
  ForeignJobs(const ForeignJobs&) = delete;
  ForeignJobs& operator=(const ForeignJobs&) = delete;

  void Put(std::shared_ptr<ForeignJob> job);
  enum class Outcome { kJob, kNothingYet, kClosed };
  // Wait up to `timeout` for the next job and load its input. The job's buffers stay valid until Finish.
  Outcome Next(std::chrono::microseconds timeout, std::shared_ptr<ForeignJob>* job);
  // Complete a job; an empty `error` means success.
  void Finish(int64_t id, const std::string& error);
  // Hand out no more jobs; jobs in progress may still be finished.
  void Close();

 private:
  void Prepare(ForeignJob& job);
  Staging Take(size_t bytes);
  void GiveBack(Staging staging);

  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ForeignJob>> queue_;
  std::map<int64_t, std::shared_ptr<ForeignJob>> taken_;  // by id
  // Buffers are reused, because other libraries may work faster with memory that they have seen before.
  std::vector<Staging> spare_;
  int64_t last_ = 0;
  bool closed_ = false;
};

// State machine that runs jobs one after another. If a job fails, Advance throws its error.
class ForeignMachine : public Machine {
 public:
  using Make = std::function<std::shared_ptr<ForeignJob>()>;
  ForeignMachine(ForeignJobs* jobs, std::vector<Make> stages) : jobs_(jobs), stages_(std::move(stages)) {}
  ~ForeignMachine() override;
  Step Advance() override;

 private:
  ForeignJobs* jobs_;
  std::vector<Make> stages_;
  size_t next_ = 0;
  std::shared_ptr<ForeignJob> job_;
};

// Return the type in which the other library reduces. Half types are widened, so that they are summed in float32 and
// rounded once; averages of integers under 64 bits are widened, so that they are divided once.
DType ForeignDType(const Reduction& reduction);
// Convert the callers' tensors to ForeignDType, or back, and apply the factors and the divisor of `reduction`.
void LoadForReduction(const Flat& from, const Reduction& reduction, std::byte* to);
void UnloadReduced(std::byte* from, const Flat& to, const Reduction& reduction);

}  // namespace hvd
