// SPDX-License-Identifier: Apache-2.0
#include "core/submissions.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr size_t kUnused = size_t{1} << 14;  // about 8 MB

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Check an alltoall's splits. `prompt`: they are followed by the rows from each member, because there is no
// negotiation.
Status CheckSplits(const Request& request, size_t members, bool prompt) {
  if (request.splits.size() != (prompt ? 2 * members : members)) {
    return Status::Invalid("alltoall '" + request.name + "': splits has " + std::to_string(request.splits.size()) +
                           " entries, but the process set has " + std::to_string(members) + " members");
  }
  int64_t sum = 0;
  for (size_t i = 0; i < request.splits.size(); ++i) {
    if (request.splits[i] < 0) return Status::Invalid("alltoall '" + request.name + "': a split is negative");
    if (i < members) sum += request.splits[i];
  }
  if (sum > request.shape[0]) {
    return Status::Invalid("alltoall '" + request.name + "': splits add up to " + std::to_string(sum) +
                           " rows, but the tensor has only " + std::to_string(request.shape[0]));
  }
  return Status::Ok();
}

Status Check(const Operation& operation, const std::vector<int>& ranks, int rank) {
  const Request& request = operation.request;
  if (!Contains(ranks, rank)) {
    return Status::Invalid("rank " + std::to_string(rank) + " is not a member of process set " +
                           std::to_string(operation.process_set));
  }
  if (request.kind == OpKind::kBroadcast && !Contains(ranks, request.root)) {
    return Status::Invalid("broadcast '" + request.name + "': root rank " + std::to_string(request.root) +
                           " is not a member of process set " + std::to_string(operation.process_set));
  }
  if (request.kind == OpKind::kAlltoall) {
    if (request.shape.empty()) return Status::Invalid("alltoall '" + request.name + "': a scalar has no rows to send");
    return CheckSplits(request, ranks.size(), operation.prompt);
  }
  return Status::Ok();
}

}  // namespace

Status Submissions::Enter(const Operation& operation, int rank) {
  auto set = sets_.find(operation.process_set);
  if (set == sets_.end()) {
    return Status::Invalid("process set " + std::to_string(operation.process_set) +
                           " does not exist: it was never added, or it has been removed");
  }
  if (Status status = Check(operation, set->second.ranks, rank); !status.ok()) return status;
  if (EnterName(operation.request.name, &set->second.in_flight)) return Status::Ok();
  return Status::Invalid("a tensor named '" + operation.request.name +
                         "' is already being processed: wait for it (synchronize) or give this one another name");
}

Status Submissions::Add(Batch operations, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.ok()) return closed_;
  for (size_t i = 0; i < operations.size(); ++i) {
    Status status = Enter(*operations[i], rank);
    if (status.ok()) continue;
    while (i-- > 0) sets_[operations[i]->process_set].in_flight.erase(operations[i]->request.name);
    return status;
  }
  // The caller of an awaited operation takes it at once, so only the age of the others matters for gathering.
  if (queue_.empty() && !operations.front()->awaited) {
    oldest_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  added_.store(added() + operations.size(), std::memory_order_relaxed);
  size_t more = operations.size();
  for (auto& operation : operations) {
    more += operation->request.Bytes();
    if (calls_ && operation->request.device >= 0 && MovesTensor(operation->request.kind)) {
      operation->ticket = (operation->prompt ? prompt_calls_ : calls_)->Take();
    }
    queue_.push_back(std::move(operation));
  }
  bytes_or_count_.fetch_add(more, std::memory_order_seq_cst);
  return Status::Ok();
}

// Return false if the name is in flight already.
bool Submissions::EnterName(std::string_view name, Names* in_flight) {
  if (spare_.empty()) return in_flight->insert(name).second;
  spare_.back().value() = name;
  auto result = in_flight->insert(std::move(spare_.back()));
  if (result.inserted) {
    spare_.pop_back();
  } else {
    spare_.back() = std::move(result.node);
  }
  return result.inserted;
}

void Submissions::TakeAll(Batch* operations) {
  std::lock_guard<std::mutex> lock(mutex_);
  operations->swap(queue_);
  bytes_or_count_.store(0, std::memory_order_seq_cst);
}

Submissions::Batch Submissions::NewOperations(size_t count) {
  Batch operations;
  operations.reserve(count);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; operations.size() < count && !unused_.empty(); unused_.pop_back()) {
      operations.push_back(std::move(unused_.back()));
    }
  }
  while (operations.size() < count) operations.push_back(std::make_unique<Operation>());
  return operations;
}

void Submissions::Finished(std::unique_ptr<Operation> operation) {
  operation->pin = Arena::Pin();
  operation->allocate = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  finished_.store(finished() + 1, std::memory_order_relaxed);
  auto set = sets_.find(operation->process_set);
  if (set != sets_.end()) {
    Names::node_type left = set->second.in_flight.extract(operation->request.name);
    if (left && spare_.size() < kSpareNames) spare_.push_back(std::move(left));
  }
  if (unused_.size() >= kUnused) return;
  operation->Clear();
  unused_.push_back(std::move(operation));
}

void Submissions::Register(int process_set, std::vector<int> ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  sets_[process_set] = Set{std::move(ranks), {}};
}

void Submissions::Unregister(int process_set) {
  std::lock_guard<std::mutex> lock(mutex_);
  sets_.erase(process_set);
}

Status Submissions::closed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

void Submissions::Close(Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
}

}  // namespace hvd
