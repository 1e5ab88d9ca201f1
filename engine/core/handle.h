// SPDX-License-Identifier: Apache-2.0
// What a caller holds while its operation is under way: the results, the outcome, and the callback.
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
    BlockPool* pool = nullptr;  // pool of `block`
    BlockPool::Block block;     // such memory on a device, until the caller has copied it
  };

  int64_t id = 0;
  std::vector<Output> outputs;  // results by position of the tensor in the group
  std::vector<int64_t> received_splits;
  int64_t value = 0;  // join: the last rank; add_process_set: the new id
  Status status;      // status of the first tensor that failed
  int left = 0;       // tensors not finished; only the driving thread uses it
  std::function<void(const Handle&)> on_done;
  std::atomic<bool> done{false};

  ~Handle() {
    for (Output& output : outputs) {
      status.ok() ? FreeOutput(output.data) : AbandonOutput(output.data);
      if (output.pool) output.pool->Discard(std::move(output.block));
    }
  }
};

// One tensor while the engine works on it.
struct Operation {
  Request request;
  int process_set = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool wide = false;  // kAllreduce: input and output are float32 and are sent as request.dtype
  std::function<void*(const std::vector<int64_t>& shape)> allocate;
  std::shared_ptr<Handle> handle;
  Arena::Pin pin;                             // keeps the region of request.place shared
  std::shared_ptr<DeviceMark> ready;          // event after which a tensor on a device is ready
  uint64_t stream = 0;                        // the caller's stream on the device
  LaunchTicket ticket;                        // place in the launch order, if NCCL launches in the order of calls
  bool prompt = false;                        // launched without negotiation: see prompt_runs.h
  size_t index = 0;                           // position in the group
  bool awaited = false;                       // true if the caller only waits for it
  uint32_t slot = kNoSlot, round = kNoRound;  // set once our part has been sent to all members

  // Reset everything, but keep the memory of the name and the shape.
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

// Number of removed entries whose memory name tables keep, because the next step adds as many again.
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
  // Remove and return a handle that is done; return null for any other.
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
  std::vector<Table::node_type> spare_;  // nodes of removed handles, to be used again
};

}  // namespace hvd
