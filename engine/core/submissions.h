// SPDX-License-Identifier: Apache-2.0
// Where callers' threads hand work to the driver: the queue, and the checks that can be made on the spot.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "core/handle.h"

namespace hvd {

class Submissions {
 public:
  using Clock = std::chrono::steady_clock;
  using Batch = std::vector<std::unique_ptr<Operation>>;

  // Operations on devices take tickets there; before the first.
  void TakeTicketsOf(CallOrder* calls, CallOrder* prompt_calls) {
    calls_ = calls;
    prompt_calls_ = prompt_calls;
  }
  // To be filled in; those that are finished are used again.
  Batch NewOperations(size_t count);
  // Queues the operations of one handle, all or none. kInvalid: unknown set, not a member, bad root, name in flight.
  Status Add(Batch operations, int rank);
  void TakeAll(Batch* operations);
  void Finished(std::unique_ptr<Operation> operation);

  void Register(int process_set, std::vector<int> ranks);
  void Unregister(int process_set);
  // From now on every Add is refused with `why`.
  void Close(Status why);
  Status closed();  // why, or ok

  bool empty() const { return bytes_or_count_.load(std::memory_order_seq_cst) == 0; }
  size_t bytes() const { return bytes_or_count_.load(std::memory_order_relaxed); }
  // How many operations were handed over so far, and how many of them are over. Any thread may ask.
  uint64_t added() const { return added_.load(std::memory_order_relaxed); }
  uint64_t finished() const { return finished_.load(std::memory_order_relaxed); }
  Clock::time_point oldest() const { return Clock::time_point(Clock::duration(oldest_.load())); }

 private:
  using Names = std::unordered_set<std::string_view>;  // that lie in the operations themselves
  struct Set {
    std::vector<int> ranks;
    Names in_flight;
  };
  Status Enter(const Operation& operation, int rank);
  bool EnterName(std::string_view name, Names* in_flight);

  CallOrder *calls_ = nullptr, *prompt_calls_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<int, Set> sets_;
  std::vector<Names::node_type> spare_;  // of names that have left: the same come again and again
  Batch unused_;                         // operations that are over: the next step has as many
  Batch queue_;
  Status closed_;
  std::atomic<size_t> bytes_or_count_{0};  // bytes queued plus one for each operation: 0 exactly when empty
  std::atomic<Clock::rep> oldest_{0};
  std::atomic<uint64_t> added_{0}, finished_{0};  // written under the mutex
};

}  // namespace hvd
