// SPDX-License-Identifier: Apache-2.0
// Collectives whose bytes travel by another library, such as MPI. A machine puts a job into a queue and then only looks
// whether it is done; a thread of the client's takes the jobs in their order and runs them, never under the driver's
// token. Jobs work on memory of their own, because what was begun cannot be called back: after a failure the other
// library may still write, when the callers' tensors have long been freed.
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

// Memory that is not zeroed first.
struct Staging {
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

struct ForeignJob {
  int64_t id = 0;
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;       // index of a member
  uint32_t group = 0;  // the epoch of the process set
  std::vector<int32_t> members;
  std::vector<int64_t> sent, received;  // elements to and from each member
  size_t in_bytes = 0, out_bytes = 0;   // in_bytes 0: `out` holds the input too
  Staging in, out;
  std::function<void(ForeignJob&)> load, unload;  // from the callers' tensors to `in` or `out`, and from `out` to them

  enum class State { kWaits, kDone, kFailed };
  std::atomic<State> state{State::kWaits};
  std::string error;     // before `state` becomes kFailed
  std::mutex mutex;      // held while the callers' tensors are touched
  bool revoked = false;  // they must not be touched any more

  std::byte* begin() { return in_bytes ? in.data.get() : out.data.get(); }
  void Revoke();
};

class ForeignJobs {
 public:
  // `wake` is called when a job is done.
  explicit ForeignJobs(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~ForeignJobs();
  ForeignJobs(const ForeignJobs&) = delete;
  ForeignJobs& operator=(const ForeignJobs&) = delete;

  void Put(std::shared_ptr<ForeignJob> job);
  enum class Outcome { kJob, kNothingYet, kClosed };
  // The next job, with its input in place. It stays where it is until Finish.
  Outcome Next(std::chrono::microseconds timeout, std::shared_ptr<ForeignJob>* job);
  // An empty error: it went well.
  void Finish(int64_t id, const std::string& error);
  // No more jobs are handed out; those under way may still be finished.
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
  std::vector<Staging> spare_;                            // other libraries like to see the same memory again
  int64_t last_ = 0;
  bool closed_ = false;
};

// One job after the other. What a job that failed tells is thrown.
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

// How another library sees elements that it reduces: half types are widened, summed in float32, and rounded once;
// averages of integers under 64 bits are widened, and divided once.
DType ForeignDType(const Reduction& reduction);
// From the callers' tensors to such elements and back, with the factors and the division of a reduction.
void LoadForReduction(const Flat& from, const Reduction& reduction, std::byte* to);
void UnloadReduced(std::byte* from, const Flat& to, const Reduction& reduction);

}  // namespace hvd
