// SPDX-License-Identifier: Apache-2.0
// What a caller holds while its operation is under way: the results, the outcome, and who wants to hear of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "agreement/message.h"
#include "base/types.h"
#include "devices/devices.h"
#include "memory/arena.h"
#include "memory/output_pool.h"

namespace hvd {

struct Handle {
  struct Output {
    void* data = nullptr;  // memory that the engine allocated, until the caller takes it
    int64_t rows = 0;
    size_t bytes = 0;
    BlockPool* pool = nullptr;  // of `block`
    BlockPool::Block block;     // the same on a device, until it has been copied
  };

  int64_t id = 0;
  std::vector<Output> outputs;  // by tensor of the group
  std::vector<int64_t> received_splits;
  int64_t value = 0;  // join: the last rank; add_process_set: the new id
  Status status;      // of the first tensor that failed
  int left = 0;       // tensors not finished; the driver's own
  std::function<void(const Handle&)> on_done;
  std::atomic<bool> done{false};

  ~Handle() {
    for (Output& output : outputs) {
      status.ok() ? FreeOutput(output.data) : AbandonOutput(output.data);
      if (output.pool) output.pool->Discard(std::move(output.block));
    }
  }
};

// One tensor on its way through the engine.
struct Operation {
  Request request;
  int process_set = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool wide = false;  // kAllreduce: input and output are float32, rounded to request.dtype on the way and widened again
  std::function<void*(const std::vector<int64_t>& shape)> allocate;
  std::shared_ptr<Handle> handle;
  Arena::Pin pin;                             // of request.place
  std::shared_ptr<DeviceMark> ready;          // tensors on a device: when their contents are
  uint64_t stream = 0;                        // the caller's there
  LaunchTicket ticket;                        // ... if NCCL launches in the order of calls
  bool prompt = false;                        // ... and it is to be launched without agreement: see prompt_runs.h
  size_t index = 0;                           // in the group
  bool awaited = false;                       // its caller does nothing else until it is done
  uint32_t slot = kNoSlot, round = kNoRound;  // if its part has been sent to all members

  // As if it were new, but for the memory of its name and shape.
  void Clear() {
    Request fresh;
    fresh.name.swap(request.name);
    fresh.shape.swap(request.shape);
    fresh.name.clear();
    fresh.shape.clear();
    *this = Operation();
    request = std::move(fresh);
  }
};

// What tables of names keep of entries that left: as many come again with the next step.
constexpr size_t kSpareNames = size_t{1} << 16;

class HandleTable {
 public:
  std::shared_ptr<Handle> Create(size_t tensors) {
    auto handle = std::make_shared<Handle>();
    handle->outputs.resize(tensors);
    handle->left = static_cast<int>(tensors);
    std::lock_guard<std::mutex> lock(mutex_);
    handle->id = ++last_;
    if (spare_.empty()) {
      table_.emplace(handle->id, handle);
      return handle;
    }
    spare_.back().key() = handle->id;
    spare_.back().mapped() = handle;
    table_.insert(std::move(spare_.back()));
    spare_.pop_back();
    return handle;
  }
  std::shared_ptr<Handle> Find(int64_t id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = table_.find(id);
    return found == table_.end() ? nullptr : found->second;
  }
  // A handle that is done, which is then forgotten; nullptr for any other.
  std::shared_ptr<Handle> TakeDone(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = table_.find(id);
    if (found == table_.end() || !found->second->done.load(std::memory_order_acquire)) return nullptr;
    return Take(found);
  }
  void Forget(int64_t id) {
    std::shared_ptr<Handle> last;  // destroyed outside the lock
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = table_.find(id);
    if (found == table_.end()) return;
    last = Take(found);
  }

 private:
  using Table = std::unordered_map<int64_t, std::shared_ptr<Handle>>;
  static constexpr size_t kSpare = 64;

  std::shared_ptr<Handle> Take(Table::iterator found) {
    Table::node_type node = table_.extract(found);
    std::shared_ptr<Handle> handle = std::move(node.mapped());
    if (spare_.size() < kSpare) spare_.push_back(std::move(node));
    return handle;
  }

  mutable std::mutex mutex_;
  int64_t last_ = 0;
  Table table_;
  std::vector<Table::node_type> spare_;  // of handles that are gone: there will be as many again
};

}  // namespace hvd
