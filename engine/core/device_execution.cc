// SPDX-License-Identifier: Apache-2.0
#include "core/device_execution.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/on_device.h"
#include "core/execution.h"

namespace hvd {
namespace {

CudaAddress AddressOf(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

// Tensors that were submitted together share one mark.
DeviceMarks ReadyOf(const RunningBatch& batch) {
  DeviceMarks marks;
  for (const auto& operation : batch.operations) {
    if (operation && operation->ready && (marks.empty() || marks.back() != operation->ready)) {
      marks.push_back(operation->ready);
    }
  }
  return marks;
}

// On the caller's own stream, behind all that it has put there; else on ours, after what makes the tensors ready.
DeviceOrder OrderOf(const Device& device, const RunningBatch& batch) {
  const Operation* first = nullptr;
  bool same = true;
  for (const auto& operation : batch.operations) {
    if (!operation) continue;
    if (!first) first = operation.get();
    same = same && operation->stream == first->stream;
  }
  if (first && same) return {reinterpret_cast<CudaStream>(first->stream), {}};
  return {device.kernels(), ReadyOf(batch)};
}

// A rank that has joined takes part on the device that it used last, or on the one that others name.
Device* DeviceOf(ProcessSet& set, const Entries& entries, const RunningBatch& batch) {
  for (const auto& operation : batch.operations) {
    if (operation) return set.devices()->Use(operation->request.device);
  }
  return set.devices()->Use(entries[0]->request.device);
}

// ---- through the memory of the device

DeviceParts WholeTensors(const Entries& entries, const RunningBatch& batch) {
  DeviceParts parts;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Operation* const operation = batch.operations[i].get();
    parts.Add(operation ? AddressOf(operation->input) : 0, operation ? AddressOf(operation->output) : 0,
              entries[i]->request.Bytes());
  }
  return parts;
}

// What goes to one member, of all tensors, after what goes to the one before it.
DeviceParts PartsByMember(const ProcessSet& set, const RunningBatch& batch) {
  DeviceParts parts;
  const auto members = static_cast<int64_t>(set.ranks().size());
  for (int64_t j = 0; j < members; ++j) {
    for (const auto& operation : batch.operations) {
      const int64_t rows = operation->request.shape[0], more = rows % members;
      const size_t row = operation->request.RowBytes();
      const size_t before = static_cast<size_t>(rows / members * j + std::min(j, more)) * row;
      const size_t bytes = static_cast<size_t>(rows / members + (j < more)) * row;
      parts.Add(AddressOf(operation->input) + before, j == set.me() ? AddressOf(operation->output) : 0, bytes);
    }
  }
  return parts;
}

// The members reach the memory of one device in each process. Not all of them would notice a tensor on another.
void CheckDevice(const Device& device, const RunningBatch& batch) {
  for (const auto& operation : batch.operations) {
    if (!operation || operation->request.device == device.ordinal()) continue;
    throw DeviceError("the tensor " + operation->request.name + " lies on GPU " +
                      std::to_string(operation->request.device) +
                      ", where earlier ones of its process set lay on GPU " + std::to_string(device.ordinal()) +
                      ": use a process set for each GPU, or HOROVOD_GPU_TRANSPORT=staged on all ranks");
  }
}

std::unique_ptr<Machine> MakeDeviceMachine(ProcessSet& set, const Entries& entries, const RunningBatch& batch) {
  const Request& first = entries[0]->request;
  const std::shared_ptr<DeviceLink>& link = set.meeting()->link();
  CheckDevice(link->device(), batch);
  DeviceSlots* const slots = set.meeting()->slots();
  DeviceOrder order = OrderOf(link->device(), batch);
  if (first.kind == OpKind::kBroadcast) {
    return std::make_unique<DeviceBroadcast>(link, slots, WholeTensors(entries, batch), std::move(order),
                                             set.IndexOf(first.root));
  }
  DeviceParts parts = first.kind == OpKind::kReducescatter ? PartsByMember(set, batch) : WholeTensors(entries, batch);
  return std::make_unique<DeviceReduce>(link, slots, std::move(parts), std::move(order),
                                        ReductionOf(first, set.ranks().size()));
}

// ---- through the memory of the host

// Copies the inputs down, runs the batch as if its tensors had been there all the time, and copies the results up.
class StagedMachine : public Machine {
 public:
  StagedMachine(ProcessSet* set, const Settings* settings, Device* device, RunningBatch* batch)
      : set_(*set),
        settings_(*settings),
        device_(device),
        batch_(*batch),
        staged_(std::make_shared<Staged>(&set->devices()->pinned())) {
    for (const auto& operation : batch_.operations) {
      if (!operation) continue;
      const size_t bytes = operation->request.Bytes();
      staged_->inputs.Add(AddressOf(operation->input), AddressOf(operation->output), bytes);
    }
    staged_->device = device;
    ready_ = ReadyOf(batch_);
  }

  bool watches_device() const override { return !inner_; }

  Step Advance() override {
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

 private:
  struct Staged {
    explicit Staged(PinnedMemory* memory) : pinned(memory) {}
    ~Staged() { pinned->GiveBack(std::move(block)); }

    PinnedMemory* pinned;
    Device* device = nullptr;
    DeviceParts inputs;
    PinnedMemory::Block block;
  };

  Step Down() {
    const size_t bytes = staged_->inputs.size();
    if (!job_ && device_->has_kernels()) staged_->block = set_.devices()->pinned().TakeSpare(bytes);
    if (!staged_->block.data && !job_) {
      job_ = set_.devices()->worker().Put([staged = staged_] {
        const Device::Scope scope(*staged->device);
        staged->device->LoadKernels();
        staged->block = staged->pinned->Take(staged->device, staged->inputs.size());
      });
    }
    if (job_ && !job_->done.load(std::memory_order_acquire)) return Step::kStuck;
    if (job_ && !job_->error.empty()) throw DeviceError(job_->error);
    staged_->inputs.CopyDown(*device_, staged_->block.data, device_->copies());
    arrived_ = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
    staged_->block.busy = arrived_;
    return Step::kMoved;
  }

  // A reducescatter's result is no larger than its input, and takes its place.
  void PrepareOnHost() {
    RunningBatch host;
    host.chunk_bytes = batch_.chunk_bytes;
    std::vector<std::pair<const std::byte*, std::byte*>> addresses;
    auto part = staged_->inputs.all().begin();
    for (auto& operation : batch_.operations) {
      if (operation) {
        addresses.emplace_back(operation->input, operation->output);
        if (operation->request.Bytes() > 0) {
          std::byte* const copy = staged_->block.data + (part++)->begin;
          operation->input = copy;
          if (operation->request.kind != OpKind::kReducescatter) operation->output = copy;
        }
      }
      host.operations.push_back(std::move(operation));
    }
    scattered_.reset();
    if (batch_.entries[0]->request.kind == OpKind::kReducescatter) PlaceScattered(&host);
    const Status status = PrepareOnHostMemory(set_, settings_, batch_.entries, &host);
    size_t next = 0;
    for (size_t i = 0; i < host.operations.size(); ++i) {
      batch_.operations[i] = std::move(host.operations[i]);
      if (!batch_.operations[i]) continue;
      batch_.operations[i]->input = addresses[next].first;
      batch_.operations[i]->output = addresses[next++].second;
    }
    if (!status.ok()) throw DeviceError(status.text);
    zeros_ = std::move(host.zeros);
    inner_ = std::move(host.machine);
  }

  void PlaceScattered(RunningBatch* host) {
    size_t bytes = 0;
    for (const auto& operation : host->operations) bytes += OwnBytes(*operation);
    scattered_ = std::make_unique<std::byte[]>(bytes);
    std::byte* next = scattered_.get();
    for (const auto& operation : host->operations) {
      operation->output = next;
      next += OwnBytes(*operation);
    }
  }

  size_t OwnBytes(const Operation& operation) const {
    const auto members = static_cast<int64_t>(set_.ranks().size());
    const int64_t rows = operation.request.shape[0];
    return static_cast<size_t>(rows / members + (set_.me() < rows % members)) * operation.request.RowBytes();
  }

  void Up() {
    if (staged_->inputs.size() == 0) return;
    const Device::Scope scope(*device_);
    if (scattered_) {
      DeviceParts outputs;
      size_t from = 0;
      for (const auto& operation : batch_.operations) {
        const size_t bytes = OwnBytes(*operation);
        outputs.Add(0, AddressOf(operation->output), bytes);
        if (bytes == 0) continue;
        std::memcpy(staged_->block.data + outputs.all().back().begin, scattered_.get() + from, bytes);
        from += bytes;
      }
      outputs.CopyUp(*device_, staged_->block.data, device_->copies());
    } else {
      staged_->inputs.CopyUp(*device_, staged_->block.data, device_->copies());
    }
    staged_->block.busy = std::make_shared<DeviceMark>(device_, device_->Mark(device_->copies()));
    device_->Launched(device_->copies());
    set_.devices()->pinned().GiveBack(std::move(staged_->block));
    staged_->block = {};
  }

  ProcessSet& set_;
  const Settings& settings_;
  Device* device_;
  RunningBatch& batch_;
  DeviceMarks ready_;
  std::shared_ptr<Staged> staged_;
  std::shared_ptr<DeviceWorker::Job> job_;  // where no pinned memory is at hand
  std::shared_ptr<DeviceMark> arrived_;     // on the host
  std::unique_ptr<std::byte[]> scattered_;  // a reducescatter's result, on the host
  std::vector<std::byte> zeros_;            // what the inner machine contributes for tensors that are not here
  std::unique_ptr<Machine> inner_;
};

// ---- which

// Follows from the batch and the set alone, so that all members come to the same answer.
bool MayUseDeviceMemory(ProcessSet& set, const Settings& settings, const Entries& entries) {
  const Request& first = entries[0]->request;
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry->request.Bytes();
  const bool possible = set.device_lane() && set.ranks().size() <= static_cast<size_t>(kMostSources) &&
                        DeviceMeeting::HasRoom(*set.device_lane()) && first.op != ReduceOp::kAdasum;
  // Few bytes are sooner there by the host, but their ranks then wait for their devices. One tensor alone is likely to
  // be waited for anyway; several are gradients, most of the time.
  const bool pays = bytes >= settings.gpu_staged_bytes || entries.size() > 1 || settings.gpu_transport == kGpuIpc;
  return possible && pays && settings.gpu_transport != kGpuStaged;
}

// Waits for the meeting of the set's members, the first time; then runs the batch as that ended.
class ChosenMachine : public Machine {
 public:
  ChosenMachine(ProcessSet* set, const Settings* settings, Device* device, RunningBatch* batch)
      : set_(*set), settings_(*settings), device_(device), batch_(*batch) {}

  bool watches_device() const override { return inner_ && inner_->watches_device(); }

  Step Advance() override {
    if (inner_) return inner_->Advance();
    const Step step = set_.meeting()->Advance();
    if (step != Step::kDone) return step;
    if (set_.meeting()->link()) {
      inner_ = MakeDeviceMachine(set_, batch_.entries, batch_);
    } else if (settings_.gpu_transport == kGpuIpc) {
      throw DeviceError("HOROVOD_GPU_TRANSPORT=ipc, but " + set_.meeting()->why_not());
    } else {
      inner_ = std::make_unique<StagedMachine>(&set_, &settings_, device_, &batch_);
    }
    return Step::kMoved;
  }

 private:
  ProcessSet& set_;
  const Settings& settings_;
  Device* device_;
  RunningBatch& batch_;
  std::unique_ptr<Machine> inner_;
};

}  // namespace

const char* WayOnDevice(const ProcessSet& set) {
  return set.meeting() && set.meeting()->link() ? "CUDA_IPC" : "CUDA_STAGED";
}

Status PrepareOnDevice(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  Device* const device = DeviceOf(set, entries, *batch);
  batch->on_device = true;
  if (MayUseDeviceMemory(set, settings, entries)) {
    set.MeetOn(device, static_cast<size_t>(settings.gpu_slot_bytes));
    batch->machine = std::make_unique<ChosenMachine>(&set, &settings, device, batch);
  } else {
    batch->machine = std::make_unique<StagedMachine>(&set, &settings, device, batch);
  }
  return Status::Ok();
}

}  // namespace hvd
