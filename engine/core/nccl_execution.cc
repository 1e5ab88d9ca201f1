// SPDX-License-Identifier: Apache-2.0
#include "core/nccl_execution.h"

#include <string>
#include <utility>
#include <vector>

#include "collectives/over_nccl.h"
#include "core/device_execution.h"
#include "core/device_outputs.h"
#include "core/execution.h"

namespace hvd {
namespace {

CudaAddress AddressIn(const std::byte* tensor) { return reinterpret_cast<CudaAddress>(tensor); }

Turn TurnOf(const ProcessSet& set, const RunningBatch& batch) { return {set.id(), set.epoch(), batch.sequence}; }

// In which order NCCL adds depends on where ranks are.
bool DependsOnOrder(const Request& first) {
  const bool extreme = first.op == ReduceOp::kMin || first.op == ReduceOp::kMax;
  return !extreme && hvd_is_floating(static_cast<int32_t>(first.dtype));
}

// Follows from the batch alone, so that all members come to the same answer.
bool NcclServes(const Request& first, const Settings& settings) {
  if (first.kind != OpKind::kAllreduce && first.kind != OpKind::kReducescatter) return true;  // bytes are bytes
  if (settings.deterministic && settings.gpu_transport != kGpuNccl && DependsOnOrder(first)) return false;
  return first.op != ReduceOp::kAdasum && NcclTypeOf(first.dtype) != kNcclNoType;
}

// Empty unless every member gets the same number of rows of each tensor.
std::vector<DevicePart> EvenParts(const ProcessSet& set, const RunningBatch& batch) {
  std::vector<DevicePart> even;
  for (const auto& operation : batch.operations) {
    if (operation->request.shape[0] % static_cast<int64_t>(set.ranks().size()) != 0) return {};
    even.push_back({AddressIn(operation->input), AddressIn(operation->output),
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
  work.through_buffer = GoesThroughBuffer(batch.entries.size(), work.parts.size());
  if (first.kind == OpKind::kBroadcast) {
    work.root = set.IndexOf(first.root);
    return work;
  }
  work.reduction = ReductionOf(first, set.ranks().size());
  const NcclFactors factors = FactorsFor(work.reduction);
  work.through_buffer |= factors.before || factors.after;
  return work;
}

// What goes from this member to each, and to it from each.
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
    CudaAddress input = AddressIn(operation.input), output = AddressIn(operation.output);
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

// Among the process's worlds, then among the sets of this one.
bool TakesTurn(const CallOrder* calls, LaunchOrder* launches, const Turn& turn) {
  if (calls && !calls->IsNext()) return false;
  if (!launches->MayCome(turn)) throw DeviceError("NCCL has no turn for its operation any more: " + launches->closed());
  return launches->Take(turn);
}

NcclMachine::Launch LaunchOf(const ProcessSet& set, const RunningBatch& batch) {
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

namespace {

// Nobody is to wait for the launch of a batch that goes another way.
void GiveUpTurn(ProcessSet& set, const RunningBatch& batch) {
  set.launches()->Drop(TurnOf(set, batch));
  for (const auto& operation : batch.operations) {
    if (operation) operation->ticket.GiveUp();
  }
}

bool MayGoByNccl(ProcessSet& set, const Settings& settings, const RunningBatch& batch) {
  if (!set.nccl()) return false;
  const Request& first = batch.entries[0]->request;
  const bool serves = NcclServes(first, settings);
  if (serves && set.IsNcclOn(batch.entries[0]->device)) return true;
  if (serves && set.nccl()->forced() && !set.nccl()->communicator()) {
    throw DeviceError("HOROVOD_GPU_TRANSPORT=nccl, but " + set.nccl()->why_not());
  }
  return false;
}

}  // namespace

bool GoesByNccl(ProcessSet& set, const Settings& settings, const RunningBatch& batch) {
  const bool goes = MayGoByNccl(set, settings, batch);
  if (!goes) GiveUpTurn(set, batch);
  return goes;
}

std::unique_ptr<Machine> MakeNcclMachine(ProcessSet& set, const RunningBatch& batch, DeviceOrder order) {
  const std::shared_ptr<Communicator>& communicator = set.nccl()->communicator();
  CheckDevice(communicator->device(), batch);
  const Turn turn = TurnOf(set, batch);
  LaunchOrder* const launches = set.launches();
  if (set.id() != kGlobalSet && set.leads()) launches->Want(turn);
  return std::make_unique<NcclMachine>(
      set.devices(), communicator, std::move(order), LaunchOf(set, batch),
      [calls = set.devices()->calls(), launches, turn] { return TakesTurn(calls, launches, turn); });
}

}  // namespace hvd
