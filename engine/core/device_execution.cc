// SPDX-License-Identifier: Apache-2.0
#include "core/device_execution.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/row_share.h"
#include "collectives/on_device.h"
#include "core/device_outputs.h"
#include "core/direct_on_device.h"
#include "core/execution.h"
#include "core/gpu_settings.h"
#include "core/launch_turn.h"
#include "core/nccl_execution.h"
#include "core/staged_execution.h"

namespace hvd {
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

namespace {

// Return the device of the tensors that this rank submitted; for a rank that has joined, the device it would use.
Device* DeviceOf(ProcessSet& set, const Entries& entries, const RunningBatch& batch) {
  const int agreed = entries[0]->device;
  for (const auto& operation : batch.operations) {
    if (!operation) continue;
    Device* const device = set.devices()->Use(operation->request.device);
    set.UseDevice(agreed, device);
    return device;
  }
  return set.DeviceWithout(agreed);
}

}  // namespace

// ---- through the memory of the device

std::string TitleOf(const RunningBatch& batch) {
  const Request& first = batch.entries[0]->request;
  const size_t more = batch.entries.size() - 1;
  return std::string(NameOf(first.kind)) + " " + first.name + (more ? " and " + std::to_string(more) + " more" : "");
}

DeviceParts WholeTensors(const Entries& entries, const RunningBatch& batch) {
  DeviceParts parts;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Operation* const operation = batch.operations[i].get();
    parts.Add(operation ? AddressOf(operation->input) : 0, operation ? AddressOf(operation->output) : 0,
              entries[i]->request.Bytes());
  }
  return parts;
}

DeviceParts PartsByMember(const ProcessSet& set, const RunningBatch& batch, std::vector<int>* owners) {
  DeviceParts parts;
  const auto members = static_cast<int64_t>(set.ranks().size());
  for (int64_t j = 0; j < members; ++j) {
    for (const auto& operation : batch.operations) {
      const RowShare share = ShareOfRows(operation->request.shape[0], members, j);
      const size_t row = operation->request.RowBytes();
      const size_t before = static_cast<size_t>(share.begin) * row, bytes = static_cast<size_t>(share.rows) * row;
      parts.Add(AddressOf(operation->input) + before, j == set.me() ? AddressOf(operation->output) : 0, bytes);
      if (owners && bytes) owners->push_back(static_cast<int>(j));
    }
  }
  return parts;
}

namespace {

// Return one member's contribution to each result of an allgather or alltoall, at the positions in this member's
// outputs where it needs them. With `own`, return this member's contribution at its inputs.
DeviceParts RunOf(const ProcessSet& set, const RunningBatch& batch, size_t from, bool own) {
  DeviceParts run;
  const size_t members = set.ranks().size(), me = static_cast<size_t>(set.me());
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    const Operation& operation = *batch.operations[i];
    const Entry& entry = *batch.entries[i];
    const size_t row = operation.request.RowBytes();
    const auto bytes = [&](size_t sender, size_t to) {
      return static_cast<size_t>(RowsBetween(entry, members, sender, to)) * row;
    };
    size_t before = 0;  // bytes in our output that come from earlier members
    for (size_t j = 0; j < from; ++j) before += bytes(j, me);
    const CudaAddress output = AddressOf(operation.output) + before;
    CudaAddress input = own ? AddressOf(operation.input) : 0;
    if (entry.request.kind == OpKind::kAllgather) {
      run.Add(input, own ? 0 : output, bytes(from, me));
      continue;
    }
    for (size_t to = 0; to < members; ++to) {
      run.Add(input, !own && to == me ? output : 0, bytes(from, to));
      if (own) input += bytes(from, to);
    }
  }
  return run;
}

}  // namespace

DeviceParts OwnRun(const ProcessSet& set, const RunningBatch& batch) {
  return RunOf(set, batch, static_cast<size_t>(set.me()), true);
}

std::vector<DeviceParts> RunsOf(const ProcessSet& set, const RunningBatch& batch) {
  std::vector<DeviceParts> from;
  for (size_t j = 0; j < set.ranks().size(); ++j) from.push_back(RunOf(set, batch, j, false));
  return from;
}

void CheckDevice(const Device& device, const RunningBatch& batch) {
  for (const auto& operation : batch.operations) {
    if (!operation || operation->request.device == device.ordinal()) continue;
    throw DeviceError("the tensor " + operation->request.name + " lies on GPU " +
                      std::to_string(operation->request.device) +
                      ", where earlier ones of its process set lay on GPU " + std::to_string(device.ordinal()) +
                      ": use a process set for each GPU, or HOROVOD_GPU_TRANSPORT=staged on all ranks");
  }
}

namespace {

std::unique_ptr<Machine> MakeDeviceMachine(ProcessSet& set, const Entries& entries, const RunningBatch& batch,
                                           DeviceOrder order) {
  const Request& first = entries[0]->request;
  const std::shared_ptr<DeviceLink>& link = set.meeting()->link();
  CheckDevice(link->device(), batch);
  DeviceSlots* const slots = set.meeting()->slots();
  if (IsExchange(first.kind)) {
    return std::make_unique<DeviceExchange>(link, slots, OwnRun(set, batch), RunsOf(set, batch), std::move(order));
  }
  if (first.kind == OpKind::kBroadcast) {
    return std::make_unique<DeviceBroadcast>(link, slots, WholeTensors(entries, batch), std::move(order),
                                             set.IndexOf(first.root));
  }
  DeviceParts parts = first.kind == OpKind::kReducescatter ? PartsByMember(set, batch) : WholeTensors(entries, batch);
  return std::make_unique<DeviceReduce>(link, slots, std::move(parts), std::move(order),
                                        ReductionOf(first, set.ranks().size()));
}

// ---- choice of the transport

// Return the bytes of an entry. The value is equal on all members.
size_t BytesOf(const Entry& entry, size_t members) {
  if (entry.request.kind == OpKind::kAlltoall) {
    return static_cast<size_t>(entry.sizes.at(0)) * members * entry.request.RowBytes();
  }
  if (entry.request.kind != OpKind::kAllgather) return entry.request.Bytes();
  int64_t rows = 0;
  for (const int64_t one : entry.sizes) rows += one;
  return static_cast<size_t>(rows) * entry.request.RowBytes();
}

}  // namespace

GpuWishes WishesOf(const ProcessSet& set, const Settings& settings) {
  return set.nccl() ? set.nccl()->wishes() : WishesOf({PassportWith(settings)});
}

// Small amounts of data arrive sooner through the host, but the ranks then wait for their devices. The caller of a
// single tensor probably waits for it anyway; several tensors are usually gradients. Each further member on the GPU is
// one more that takes a turn there.
bool PaysOnDevice(const GpuWishes& wishes, const Entries& entries, size_t members, size_t sharing) {
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += BytesOf(*entry, members);
  return entries.size() > 1 || bytes >= wishes.staged_bytes * std::max<size_t>(sharing, 2) / 2;
}

namespace {

// How a batch uses device memory that the members can reach. kWithoutTurns: only if the GPU runs the members' work
// concurrently, because taking turns does not pay for this batch.
enum class OnDevice { kNo, kWithoutTurns, kYes };

OnDevice MayUseDeviceMemory(const ProcessSet& set, const GpuWishes& wishes, const Entries& entries) {
  const size_t members = set.ranks().size();
  const bool possible = set.device_lane() && members <= static_cast<size_t>(kMostSources) &&
                        DeviceMeeting::HasRoom(*set.device_lane()) && entries[0]->request.op != ReduceOp::kAdasum;
  // Tensors on a second GPU of these processes do not use device memory, unless the setting asks for ipc.
  const bool here = wishes.ipc || set.MayMeetOn(entries[0]->device);
  if (!possible || !here || wishes.staged) return OnDevice::kNo;
  if (wishes.ipc || PaysOnDevice(wishes, entries, members, members)) return OnDevice::kYes;
  // Do not set up device memory for members that have no large tensors. All members start the setup after the same
  // batch, so they agree here.
  return set.meeting() ? OnDevice::kWithoutTurns : OnDevice::kNo;
}

// Prepares the outputs, waits for the members' setup negotiation (only once per set), then runs the batch on the
// transport that this selected.
class ChosenMachine : public Machine {
 public:
  ChosenMachine(ProcessSet* set, const Settings* settings, Device* device, RunningBatch* batch)
      : set_(*set),
        settings_(*settings),
        device_(device),
        batch_(*batch),
        direct_(set, &batch->entries),
        outputs_(set->devices(), device) {}

  ~ChosenMachine() override { set_.devices()->times().Drop(device_, began_); }
  bool watches_device() const override { return inner_ && inner_->watches_device(); }

  Step Advance() override {
    if (!inner_) {
      if (!outputs_.Prepare(set_, &batch_)) return Step::kStuck;
      if (set_.nccl()) {
        const Step step = set_.nccl()->Advance();
        if (step != Step::kDone) return step;
        set_.devices()->sharing().Note(set_.id(), set_.nccl()->sharing());
        SettlePrompt();
      }
      if (!met_) ComeToMeeting();
      const bool by_nccl = GoesByNccl(set_, batch_);
      if (on_device_ != OnDevice::kNo && !by_nccl) {
        Step step = set_.meeting()->Advance();
        if (step == Step::kDone && OnOneDevice()) {
          set_.MeetAboutRegions();
          if (batch_.placed) step = direct_.Advance();
        }
        if (step != Step::kDone) return step;
      }
      Choose(by_nccl);
    }
    if (turn_ && !turn_->Comes()) return Step::kStuck;
    const Step step = inner_->Advance();
    if (step == Step::kDone && turn_) turn_->Over();
    if (step == Step::kDone && began_) {
      const Device::Scope scope(*device_);
      set_.devices()->times().End(device_, std::exchange(began_, nullptr), stream_, TitleOf(batch_));
    }
    return step;
  }

 private:
  // Return true if all members are on one device. Requires that the setup negotiation is finished.
  bool OnOneDevice() const {
    const DeviceLink* const link = set_.meeting()->link().get();
    return link && link->on_one_device();
  }

  // Decide from the settings of all members, which they have exchanged by now, whether to begin the setup on the
  // device.
  void ComeToMeeting() {
    met_ = true;
    wishes_ = WishesOf(set_, settings_);
    on_device_ = MayUseDeviceMemory(set_, wishes_, batch_.entries);
    if (on_device_ != OnDevice::kYes) return;
    set_.MeetOn(device_, batch_.entries[0]->device, static_cast<size_t>(wishes_.slot_bytes));
  }

  void Choose(bool by_nccl) {
    const bool by_device = !by_nccl && PaysNow();
    std::vector<DirectRun> runs;
    if (by_device && batch_.placed && OnOneDevice()) runs = direct_.Runs();
    batch_.direct = !runs.empty();
    if (!by_nccl && !by_device && on_device_ == OnDevice::kYes && wishes_.ipc) {
      throw DeviceError("HOROVOD_GPU_TRANSPORT=ipc, but " + set_.meeting()->why_not());
    }
    DeviceOrder order =
        by_nccl && RunsBeside() ? DeviceOrder{device_->kernels(), ReadyOf(batch_)} : OrderOf(*device_, batch_);
    stream_ = by_nccl || by_device ? order.stream : device_->copies();
    batch_.way_on_device = batch_.direct ? "CUDA_DIRECT" : by_device ? "CUDA_IPC" : "CUDA_STAGED";
    const bool launcher_sees_to_it = by_nccl && !set_.nccl()->mates();
    if (set_.devices()->times().on() && !launcher_sees_to_it) {
      const Device::Scope scope(*device_);
      began_ = set_.devices()->times().Begin(device_, stream_);
    }
    TakeTurn(by_nccl, by_device);
    if (by_nccl) {
      inner_ = MakeNcclMachine(set_, &batch_, std::move(order));
    } else if (batch_.direct) {
      CheckDevice(set_.meeting()->link()->device(), batch_);
      inner_ = std::make_unique<DeviceDirect>(set_.meeting()->link(), set_.meeting()->slots(), std::move(runs),
                                              std::move(order),
                                              ReductionOf(batch_.entries[0]->request, set_.ranks().size()));
    } else if (by_device) {
      inner_ = MakeDeviceMachine(set_, batch_.entries, batch_, std::move(order));
    } else {
      inner_ = std::make_unique<StagedMachine>(&set_, &settings_, device_, &batch_);
    }
  }

  bool PaysNow() const {
    if (on_device_ == OnDevice::kNo || !set_.meeting()->link()) return false;
    return on_device_ == OnDevice::kYes || set_.meeting()->link()->runs_together();
  }

  // Return true if NCCL runs on a stream of its own, so that computation overlaps with communication. On a shared GPU
  // this would only cost turns. Worlds that launch in the order of calls (process groups of torch.distributed) have
  // another stream for this; see prompt_runs.h.
  bool RunsBeside() const { return !set_.nccl()->mates() && !set_.devices()->calls(); }

  // Record whether operations may skip negotiation when their callers ask for it: only if no members share a GPU.
  void SettlePrompt() const {
    if (!set_.devices()->prompt_calls() || set_.id() != kGlobalSet || set_.devices()->prompt_settled()) return;
    const std::shared_ptr<Communicator>& communicator = set_.nccl()->communicator();
    const bool alone = set_.nccl()->serves() && communicator && !set_.nccl()->mates();
    const bool every_type = !set_.nccl()->wishes().deterministic || set_.nccl()->forced();
    set_.devices()->SettlePrompt(alone && every_type ? &communicator->device() : nullptr);
  }

  // Reserve the launch slot of this batch. A stream that waits for members on the same GPU can block NCCL work of other
  // sets just as NCCL itself can.
  void TakeTurn(bool by_nccl, bool by_device) {
    const NcclMeeting* const nccl = set_.nccl();
    if (by_nccl) {
      turn_.emplace(&set_, batch_, nccl->mates() ? LaunchTurn::Kind::kInPieces : LaunchTurn::Kind::kWhole);
    } else if (by_device && nccl && !wishes_.not_nccl) {
      turn_.emplace(&set_, batch_, LaunchTurn::Kind::kIfAny);
    } else {
      LaunchTurn::Decline(set_, batch_);
    }
  }

  ProcessSet& set_;
  const Settings& settings_;
  Device* device_;
  RunningBatch& batch_;
  bool met_ = false;
  GpuWishes wishes_{};
  OnDevice on_device_ = OnDevice::kNo;
  DirectOnDevice direct_;
  DeviceOutputs outputs_;
  CudaStream stream_ = nullptr;
  CudaEvent began_ = nullptr;  // start event, while a timeline is written
  std::optional<LaunchTurn> turn_;
  std::unique_ptr<Machine> inner_;
};

}  // namespace

Status PrepareOnDevice(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  Device* const device = DeviceOf(set, entries, *batch);
  batch->on_device = true;
  if (set.ranks().size() > 1) set.MeetOverNccl(device, entries[0]->device, settings);
  batch->machine = std::make_unique<ChosenMachine>(&set, &settings, device, batch);
  return Status::Ok();
}

}  // namespace hvd
