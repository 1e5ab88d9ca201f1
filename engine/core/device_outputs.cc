// SPDX-License-Identifier: Apache-2.0
#include "core/device_outputs.h"

#include <utility>

namespace hvd {

bool IsExchange(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

int64_t RowsBetween(const Entry& entry, size_t members, size_t from, size_t to) {
  return entry.request.kind == OpKind::kAllgather ? entry.sizes.at(from) : entry.sizes.at(1 + from * members + to);
}

DeviceOutputs::Blocks::~Blocks() {
  for (BlockPool::Block& block : all) pool->Discard(std::move(block));
}

bool DeviceOutputs::Prepare(const ProcessSet& set, RunningBatch* batch) {
  if (ready_) return true;
  if (!measured_ && IsExchange(batch->entries[0]->request.kind)) Measure(set, batch);
  measured_ = true;
  if (!without_.empty() && !TakeBlocks()) return false;
  for (size_t i = 0; i < without_.size(); ++i) {
    Handle::Output& output = without_[i]->handle->outputs[without_[i]->index];
    output.pool = blocks_->pool;
    output.block = std::exchange(blocks_->all[i], {});
    without_[i]->output = output.block.data;
  }
  ready_ = true;
  return true;
}

void DeviceOutputs::Measure(const ProcessSet& set, RunningBatch* batch) {
  const size_t members = set.ranks().size(), me = static_cast<size_t>(set.me());
  for (size_t i = 0; i < batch->operations.size(); ++i) {
    Operation& operation = *batch->operations[i];
    std::vector<int64_t> received;
    int64_t rows = 0;
    for (size_t from = 0; from < members; ++from) {
      received.push_back(RowsBetween(*batch->entries[i], members, from, me));
      rows += received.back();
    }
    if (operation.request.kind == OpKind::kAlltoall) operation.handle->received_splits = std::move(received);
    Handle::Output& output = operation.handle->outputs[operation.index];
    output.rows = rows;
    output.bytes = static_cast<size_t>(rows) * operation.request.RowBytes();
    if (operation.output || output.bytes == 0) continue;
    if (operation.allocate) {
      std::vector<int64_t> shape = operation.request.shape;
      shape[0] = rows;
      operation.output = static_cast<std::byte*>(operation.allocate(shape));
      if (!operation.output) throw DeviceError("the caller could not allocate its output");
    } else {
      without_.push_back(&operation);
      bytes_.push_back(output.bytes);
    }
  }
}

bool DeviceOutputs::TakeBlocks() {
  if (!blocks_) {
    blocks_ = std::make_shared<Blocks>();
    blocks_->pool = &devices_.outputs();
    const Device::Scope scope(*device_);
    bool all = true;
    for (const size_t bytes : bytes_) {
      blocks_->all.push_back(blocks_->pool->TakeSpare(device_, bytes));
      all = all && blocks_->all.back().data;
    }
    if (all) return true;
    job_ = devices_.worker().Put([blocks = blocks_, device = device_, sizes = bytes_] {
      const Device::Scope here(*device);
      for (size_t i = 0; i < sizes.size(); ++i) {
        if (!blocks->all[i].data) blocks->all[i] = blocks->pool->Take(device, sizes[i]);
      }
    });
  }
  if (job_ && !job_->done.load(std::memory_order_acquire)) return false;
  if (job_ && !job_->error.empty()) throw DeviceError(job_->error);
  return true;
}

}  // namespace hvd
