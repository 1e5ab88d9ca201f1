// SPDX-License-Identifier: Apache-2.0
#include "core/staged_execution.h"

#include "base/row_share.h"
#include "core/execution.h"

namespace hvd {
namespace {

bool ReplacesInput(OpKind kind) { return kind == OpKind::kAllreduce || kind == OpKind::kBroadcast; }

}  // namespace

DeviceMarks ReadyOf(const RunningBatch& batch) {
  DeviceMarks marks;
  for (const auto& operation : batch.operations) {
    if (operation && operation->ready && (marks.empty() || marks.back() != operation->ready)) {
      marks.push_back(operation->ready);
    }
  }
  return marks;
}

StagedMachine::StagedMachine(ProcessSet* set, const Settings* settings, Device* device, RunningBatch* batch)
    : set_(*set),
      settings_(*settings),
      device_(device),
      batch_(*batch),
      replaces_(ReplacesInput(batch->entries[0]->request.kind)),
      ready_(ReadyOf(*batch)),
      staged_(std::make_shared<Staged>(&set->devices()->pinned())) {
  staged_->device = device;
  for (const auto& operation : batch_.operations) {
    if (!operation) continue;
    const CudaAddress output = AddressOf(operation->output);
    staged_->inputs.Add(AddressOf(operation->input), output, operation->request.Bytes());
    if (!replaces_) staged_->outputs.Add(0, output, ResultBytes(*operation));
  }
}

size_t StagedMachine::ResultBytes(const Operation& operation) const {
  if (operation.request.kind != OpKind::kReducescatter) return operation.handle->outputs[operation.index].bytes;
  const auto members = static_cast<int64_t>(set_.ranks().size());
  const int64_t rows = operation.request.shape[0];
  return static_cast<size_t>(ShareOfRows(rows, members, set_.me()).rows) * operation.request.RowBytes();
}

Machine::Step StagedMachine::Advance() {
  if (!inner_) {
    const Device::Scope scope(*device_);
    if (!AreDone(&ready_)) return Step::kStuck;
    if (!arrived_) return Down();
    if (!arrived_->IsDone()) return Step::kStuck;
    PrepareOnHost();
  }
  const Step step = inner_->Advance();
  if (step == Step::kDone) Up();
  return step;
}

Machine::Step StagedMachine::Down() {
  if (!job_ && device_->has_kernels()) staged_->block = staged_->pinned->TakeSpare(device_, staged_->bytes());
  if (!staged_->block.data && !job_) {
    job_ = set_.devices()->worker().Put([staged = staged_] {
      const Device::Scope scope(*staged->device);
      staged->device->LoadKernels();
      staged->block = staged->pinned->Take(staged->device, staged->bytes());
    });
  }
  if (job_ && !job_->done.load(std::memory_order_acquire)) return Step::kStuck;
  if (job_ && !job_->error.empty()) throw DeviceError(job_->error);
  staged_->inputs.CopyDown(*device_, staged_->block.data, device_->copies());
  arrived_ = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
  staged_->block.busy = arrived_;
  return Step::kMoved;
}

// Let the operations point to the copies from here on, because some machines read the output pointer late.
void StagedMachine::PlaceOnHost() {
  auto input = staged_->inputs.all().begin();
  auto output = staged_->outputs.all().begin();
  std::byte* const outputs = staged_->block.data + staged_->inputs.size();
  for (auto& operation : batch_.operations) {
    if (!operation) continue;
    const bool has_result = !replaces_ && ResultBytes(*operation) > 0;
    if (operation->request.Bytes() > 0) {
      std::byte* const copy = staged_->block.data + (input++)->begin;
      operation->input = copy;
      if (replaces_) operation->output = copy;
    }
    if (has_result) operation->output = outputs + (output++)->begin;
  }
}

void StagedMachine::PrepareOnHost() {
  PlaceOnHost();
  RunningBatch host;
  host.chunk_bytes = batch_.chunk_bytes;
  host.operations = std::move(batch_.operations);
  const Status status = PrepareOnHostMemory(set_, settings_, batch_.entries, &host);
  batch_.operations = std::move(host.operations);
  if (!status.ok()) throw DeviceError(status.text);
  zeros_ = std::move(host.zeros);
  inner_ = std::move(host.machine);
}

void StagedMachine::Up() {
  if (staged_->bytes() == 0) return;
  const Device::Scope scope(*device_);
  if (replaces_) {
    staged_->inputs.CopyUp(*device_, staged_->block.data, device_->copies());
  } else {
    staged_->outputs.CopyUp(*device_, staged_->block.data + staged_->inputs.size(), device_->copies());
  }
  staged_->block.busy = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
  device_->Launched(device_->copies());
  staged_->pinned->GiveBack(std::move(staged_->block));
  staged_->block = {};
}

}  // namespace hvd
