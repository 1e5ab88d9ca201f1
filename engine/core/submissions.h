// SPDX-License-Identifier: Apache-2.0
// Queue through which callers' threads hand operations to the driving thread, with the checks that can be made at once.
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

  // Set the launch orders from which operations on devices take tickets. Call before the first operation.
  void TakeTicketsOf(CallOrder* calls, CallOrder* prompt_calls) {
    calls_ = calls;
    prompt_calls_ = prompt_calls;
  }
  // Return operations for the caller to fill in; finished ones are reused.
  Batch NewOperations(size_t count);
  // Queue the operations of one handle, all or none. kInvalid: unknown process set, not a member, bad root, or a name
  // in flight.
  Status Add(Batch operations, int rank);
  void TakeAll(Batch* operations);
  void Finished(std::unique_ptr<Operation> operation);

  void Register(int process_set, std::vector<int> ranks);
  void Unregister(int process_set);
  // Refuse every later Add with `why`.
  void Close(Status why);
  Status closed();  // the reason given to Close, or ok

  bool empty() const { return bytes_or_count_.load(std::memory_order_seq_cst) == 0; }
  size_t bytes() const { return bytes_or_count_.load(std::memory_order_relaxed); }
  // Number of operations that were queued so far, and number of those that are over. Any thread may call these.
  uint64_t added() const { return added_.load(std::memory_order_relaxed); }
  uint64_t finished() const { return finished_.load(std::memory_order_relaxed); }
  Clock::time_point oldest() const { return Clock::time_point(Clock::duration(oldest_.load())); }

 private:
  using Names = std::unordered_set<std::string_view>;  // these point into the operations
  struct Set {
    std::vector<int> ranks;
    Names in_flight;
  };
  Status Enter(const Operation& operation, int rank);
  bool EnterName(std::string_view name, Names* in_flight);

  CallOrder *calls_ = nullptr, *prompt_calls_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<int, Set> sets_;
  std::vector<Names::node_type> spare_;  // nodes of removed names, to be used again
  Batch unused_;                         // finished operations, to be used again
  Batch queue_;
  Status closed_;
  std::atomic<size_t> bytes_or_count_{0};  // bytes queued plus one for each operation: 0 exactly if empty
  std::atomic<Clock::rep> oldest_{0};
  std::atomic<uint64_t> added_{0}, finished_{0};  // written under the mutex
};

}  // namespace hvd
