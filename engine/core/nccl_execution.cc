// SPDX-License-Identifier: Apache-2.0
#include "core/nccl_execution.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "collectives/across_gpus.h"
#include "collectives/over_nccl.h"
#include "core/device_execution.h"
#include "core/device_outputs.h"
#include "core/execution.h"

namespace hvd {
namespace {

// Return true if the result depends on the order of additions, which NCCL chooses by where the ranks are.
bool DependsOnOrder(const Request& first) {
  const bool extreme = first.op == ReduceOp::kMin || first.op == ReduceOp::kMax;
  return !extreme && hvd_is_floating(static_cast<int32_t>(first.dtype));
}

// Return true if NCCL may run the batch. The answer follows from the batch and from what the members have agreed on, so
// all members get the same answer.
bool NcclServes(const NcclMeeting& meeting, const Request& first) {
  const bool sums = first.kind == OpKind::kAllreduce || first.kind == OpKind::kReducescatter;
  if (sums && meeting.wishes().deterministic && !meeting.forced() && DependsOnOrder(first)) return false;
  return NcclKnows(first.kind, first.op, first.dtype);
}

// Return true if NCCL pays where members share GPUs. An alltoall is faster without the detour through one rank per GPU.
// All members get the same answer.
bool PaysAcrossGpus(const NcclMeeting& meeting, const Entries& entries) {
  const OpKind kind = entries[0]->request.kind;
  if (kind == OpKind::kAlltoall) return false;
  if (kind == OpKind::kAllgather && AllgatherAcrossGpus::ChunkOf(meeting) == 0) return false;
  return meeting.forced() ||
         PaysOnDevice(meeting.wishes(), entries, meeting.layout().gpu_of().size(), meeting.layout().MostOnOne());
}

// Return equal parts for each tensor, or nothing unless each member gets the same number of rows of each tensor.
std::vector<DevicePart> EvenParts(const ProcessSet& set, const RunningBatch& batch) {
  std::vector<DevicePart> even;
  for (const auto& operation : batch.operations) {
    if (operation->request.shape[0] % static_cast<int64_t>(set.ranks().size()) != 0) return {};
    even.push_back({AddressOf(operation->input), AddressOf(operation->output),
                    operation->request.Bytes() / set.ranks().size(), 0});
  }
  return even;
}

NcclWork WorkOf(const ProcessSet& set, const RunningBatch& batch) {
  const Request& first = batch.entries[0]->request;
  NcclWork work;
  if (first.kind == OpKind::kReducescatter) {
    work.parts = PartsByMember(set, batch, &work.owners);
    work.even = EvenParts(set, batch);
  } else {
    work.parts = WholeTensors(batch.entries, batch);
  }
  work.through_buffer = GoesThroughBuffer(batch.entries.size(), work.parts.size(), set.nccl()->fused_bytes());
  if (first.kind == OpKind::kBroadcast) {
    work.root = set.IndexOf(first.root);
    return work;
  }
  work.reduction = ReductionOf(first, set.ranks().size());
  const NcclFactors factors = FactorsFor(work.reduction);
  work.through_buffer |= factors.before || factors.after;
  return work;
}

// Return what this member sends to each member and receives from each.
NcclExchange ExchangeOf(const ProcessSet& set, const RunningBatch& batch) {
  NcclExchange exchange;
  const size_t members = set.ranks().size(), me = static_cast<size_t>(set.me());
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    const Operation& operation = *batch.operations[i];
    const Entry& entry = *batch.entries[i];
    const size_t row = operation.request.RowBytes();
    const auto bytes = [&](size_t from, size_t to) {
      return static_cast<size_t>(RowsBetween(entry, members, from, to)) * row;
    };
    CudaAddress input = AddressOf(operation.input), output = AddressOf(operation.output);
    NcclExchange::Tensor& tensor = exchange.tensors.emplace_back();
    tensor.gathers = entry.request.kind == OpKind::kAllgather;
    for (size_t j = 0; j < members; ++j) {
      tensor.sent.push_back({input, bytes(me, j)});
      tensor.received.push_back({output, bytes(j, me)});
      if (!tensor.gathers) input += bytes(me, j);
      output += bytes(j, me);
    }
  }
  return exchange;
}

}  // namespace

bool NcclKnows(OpKind kind, ReduceOp op, DType dtype) {
  if (kind != OpKind::kAllreduce && kind != OpKind::kReducescatter) return true;  // other kinds only move bytes
  return op != ReduceOp::kAdasum && NcclTypeOf(dtype) != kNcclNoType;
}

namespace {

// Add times for the timeline, measured from when the stream reaches the work.
NcclLaunches::Work Timed(Devices* devices, std::string title, NcclLaunches::Work work) {
  return [&times = devices->times(), title = std::move(title), work = std::move(work)](Communicator& communicator,
                                                                                       CudaStream stream) {
    Device* const device = &communicator.device();
    const CudaEvent began = times.Begin(device, stream);
    try {
      work(communicator, stream);
    } catch (...) {
      times.Drop(device, began);
      throw;
    }
    times.End(device, began, stream, title);
  };
}

NcclLaunches::Work PlainLaunchOf(const ProcessSet& set, const RunningBatch& batch) {
  const OpKind kind = batch.entries[0]->request.kind;
  if (IsExchange(kind)) {
    return [exchange = ExchangeOf(set, batch)](Communicator& communicator, CudaStream stream) {
      LaunchExchange(communicator, exchange, stream);
    };
  }
  const auto launch = kind == OpKind::kBroadcast       ? LaunchBroadcast
                      : kind == OpKind::kReducescatter ? LaunchReducescatter
                                                       : LaunchAllreduce;
  return [launch, work = WorkOf(set, batch)](Communicator& communicator, CudaStream stream) {
    launch(communicator, work, stream);
  };
}

}  // namespace

NcclLaunches::Work LaunchOf(const ProcessSet& set, const RunningBatch& batch) {
  NcclLaunches::Work work = PlainLaunchOf(set, batch);
  return set.devices()->times().on() ? Timed(set.devices(), TitleOf(batch), std::move(work)) : work;
}

namespace {

std::unique_ptr<Machine> MakeMachineAcrossGpus(ProcessSet& set, const RunningBatch& batch, DeviceOrder order) {
  const NcclMeeting& meeting = *set.nccl();
  CheckDevice(meeting.mates()->link()->device(), batch);
  const Request& first = batch.entries[0]->request;
  if (first.kind == OpKind::kAllgather) {
    return std::make_unique<AllgatherAcrossGpus>(set.devices(), meeting, OwnRun(set, batch), RunsOf(set, batch),
                                                 std::move(order));
  }
  if (first.kind == OpKind::kBroadcast) {
    return std::make_unique<BroadcastAcrossGpus>(set.devices(), meeting, WholeTensors(batch.entries, batch),
                                                 std::move(order), set.IndexOf(first.root));
  }
  DeviceParts parts =
      first.kind == OpKind::kReducescatter ? PartsByMember(set, batch) : WholeTensors(batch.entries, batch);
  return std::make_unique<ReduceAcrossGpus>(set.devices(), meeting, std::move(parts), std::move(order),
                                            ReductionOf(first, set.ranks().size()));
}

}  // namespace

bool WentByNccl(const RunningBatch& batch) {
  return batch.way_on_device == kByNccl || batch.way_on_device == kByIpcAndNccl;
}

bool GoesByNccl(const ProcessSet& set, const RunningBatch& batch) {
  if (!set.nccl()) return false;
  const NcclMeeting& meeting = *set.nccl();
  const bool possible = NcclServes(meeting, batch.entries[0]->request);
  if (possible && set.IsNcclOn(batch.entries[0]->device) &&
      (!meeting.mates() || PaysAcrossGpus(meeting, batch.entries))) {
    return true;
  }
  if (possible && meeting.forced() && !meeting.serves()) {
    throw DeviceError("HOROVOD_GPU_TRANSPORT=nccl, but " + meeting.why_not());
  }
  return false;
}

std::unique_ptr<Machine> MakeNcclMachine(ProcessSet& set, RunningBatch* batch, DeviceOrder order) {
  const bool shared = set.nccl()->mates() != nullptr;
  batch->way_on_device = shared ? kByIpcAndNccl : kByNccl;
  if (shared) return MakeMachineAcrossGpus(set, *batch, std::move(order));
  const std::shared_ptr<Communicator>& communicator = set.nccl()->communicator();
  CheckDevice(communicator->device(), *batch);
  return std::make_unique<NcclMachine>(set.devices(), communicator, std::move(order), LaunchOf(set, *batch));
}

}  // namespace hvd
