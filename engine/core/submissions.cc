// SPDX-License-Identifier: Apache-2.0
#include "core/submissions.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr size_t kSpareNames = 64;

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Status CheckSplits(const Request& request, size_t members) {
  if (request.splits.size() != members) {
    return Status::Invalid("alltoall '" + request.name + "': splits has " + std::to_string(request.splits.size()) +
                           " entries, but the process set has " + std::to_string(members) + " members");
  }
  int64_t sum = 0;
  for (int64_t rows : request.splits) {
    if (rows < 0) return Status::Invalid("alltoall '" + request.name + "': a split is negative");
    sum += rows;
  }
  if (sum > request.shape[0]) {
    return Status::Invalid("alltoall '" + request.name + "': splits add up to " + std::to_string(sum) +
                           " rows, but the tensor has only " + std::to_string(request.shape[0]));
  }
  return Status::Ok();
}

}  // namespace

Status Submissions::Check(const Operation& operation, int rank) {
  const Request& request = operation.request;
  auto set = sets_.find(operation.process_set);
  if (set == sets_.end()) {
    return Status::Invalid("process set " + std::to_string(operation.process_set) +
                           " does not exist: it was never added, or it has been removed");
  }
  const std::vector<int>& ranks = set->second.ranks;
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
    if (Status status = CheckSplits(request, ranks.size()); !status.ok()) return status;
  }
  if (set->second.in_flight.count(request.name)) {
    return Status::Invalid("a tensor named '" + request.name +
                           "' is already being processed: wait for it (synchronize) or give this one another name");
  }
  return Status::Ok();
}

Status Submissions::Add(Batch operations, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.ok()) return closed_;
  for (size_t i = 0; i < operations.size(); ++i) {
    Status status = Check(*operations[i], rank);
    if (status.ok()) {
      Enter(operations[i]->request.name, &sets_[operations[i]->process_set].in_flight);
      continue;
    }
    while (i-- > 0) sets_[operations[i]->process_set].in_flight.erase(operations[i]->request.name);
    return status;
  }
  // What is awaited is not gathered, so its age does not matter.
  if (queue_.empty() && !operations.front()->awaited) {
    oldest_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  size_t more = operations.size();
  for (auto& operation : operations) {
    more += operation->request.Bytes();
    queue_.push_back(std::move(operation));
  }
  bytes_or_count_.fetch_add(more, std::memory_order_seq_cst);
  return Status::Ok();
}

void Submissions::Enter(const std::string& name, Names* in_flight) {
  if (spare_.empty()) {
    in_flight->insert(name);
    return;
  }
  spare_.back().value() = name;
  in_flight->insert(std::move(spare_.back()));
  spare_.pop_back();
}

void Submissions::TakeAll(Batch* operations) {
  std::lock_guard<std::mutex> lock(mutex_);
  operations->swap(queue_);
  bytes_or_count_.store(0, std::memory_order_seq_cst);
}

void Submissions::Finished(int process_set, const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto set = sets_.find(process_set);
  if (set == sets_.end()) return;
  Names::node_type left = set->second.in_flight.extract(name);
  if (left && spare_.size() < kSpareNames) spare_.push_back(std::move(left));
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
