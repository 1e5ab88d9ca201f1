// SPDX-License-Identifier: Apache-2.0
#include "collectives/over_nccl.h"

#include <algorithm>
#include <utility>

#include "base/half.h"

namespace hvd {
namespace {

// Delay before an error of NCCL is reported. NCCL may fail because a rank is lost, which the engine reports more
// precisely.
constexpr std::chrono::seconds kBeforeBlame(2);

const void* PointerTo(CudaAddress address) { return reinterpret_cast<const void*>(address); }
void* WritableAt(CudaAddress address) { return reinterpret_cast<void*>(address); }

bool IsExactIn(double factor, DType dtype) {
  const auto single = static_cast<float>(factor);
  switch (dtype) {
    case DType::kFloat64:
    case DType::kFloat32:  // the factor is rounded once, as each product is
      return true;
    case DType::kFloat16:
      return FloatFromFloat16(Float16FromFloat(single)) == factor;
    case DType::kBFloat16:
      return FloatFromBFloat16(BFloat16FromFloat(single)) == factor;
    default:
      return false;
  }
}

int NcclOpOf(Communicator& communicator, const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProduct;
    default:
      return communicator.SumTimes(FactorsFor(reduction).with_sum, reduction.dtype);
  }
}

// Return how many bytes of the run the buffer holds at once. Averages of small integers need room for their sums too.
size_t RoomIn(const Communicator& communicator, const Reduction& reduction) {
  const size_t times = reduction.IsWidened() ? reduction.SumRatio() + 1 : 1;
  return communicator.buffer_bytes() / times / kUnit * kUnit;
}

// Call move(begin, end, buffer) for one chunk of the run after another, each as large as the buffer allows.
template <typename Move>
void ThroughBuffer(Communicator& communicator, const NcclWork& work, CudaStream stream, Move move) {
  const size_t room = RoomIn(communicator, work.reduction);
  for (size_t begin = 0; begin < work.parts.size(); begin += room) {
    move(begin, std::min(work.parts.size(), begin + room), communicator.Buffer(stream));
  }
}

// Fill the buffer with the values that NCCL adds. If elements must be widened, they are first copied into the second
// part of the buffer, and the sums use the first part.
void FillBuffer(const Communicator& communicator, const NcclWork& work, size_t begin, size_t end, CudaAddress buffer,
                CudaStream stream) {
  const Device& device = communicator.device();
  const Reduction& reduction = work.reduction;
  const bool widens = reduction.IsWidened();
  const CudaAddress elements = widens ? buffer + RoomIn(communicator, reduction) * reduction.SumRatio() : buffer;
  work.parts.Gather(device, begin, end, elements, stream);
  if (FactorsFor(reduction).before) {
    DeviceParts own;
    own.Add(elements, elements, end - begin);
    const Reduction scaling{reduction.dtype, ReduceOp::kSum, 1.0, reduction.prescale, 1};
    own.Reduce(device, scaling, 0, end - begin, {elements}, stream);
  }
  if (widens) WidenSum(device, reduction, end - begin, {elements}, buffer, stream);
}

void EmptyBuffer(const Device& device, const NcclWork& work, size_t begin, size_t end, CudaAddress buffer,
                 CudaStream stream) {
  if (work.reduction.IsWidened()) return work.parts.NarrowAverages(device, work.reduction, begin, end, buffer, stream);
  if (!FactorsFor(work.reduction).after) return work.parts.Scatter(device, begin, end, buffer, stream);
  Reduction scaling = work.reduction;
  scaling.op = ReduceOp::kSum;  // use the sum of one source, so that only the scaling applies
  work.parts.Reduce(device, scaling, begin, end, {buffer}, stream);
}

// Scratch memory for the parts that a joined rank does not have: zeros as input, and room for results that it ignores.
class Missing {
 public:
  Missing(Communicator& communicator, const DeviceParts& parts, CudaStream stream) {
    size_t bytes = 0;
    for (const DevicePart& part : parts.all()) bytes += part.input ? 0 : part.bytes + kUnit;
    if (bytes == 0) return;
    next_ = communicator.Scratch(bytes, stream);
    communicator.device().Zero(next_, bytes, stream);
  }
  CudaAddress Take(size_t bytes) {
    const CudaAddress taken = next_;
    next_ += (bytes + kUnit - 1) / kUnit * kUnit;
    return taken;
  }

 private:
  CudaAddress next_ = 0;
};

}  // namespace

NcclFactors FactorsFor(const Reduction& reduction) {
  NcclFactors factors;
  const bool sums = reduction.op == ReduceOp::kSum && hvd_is_floating(static_cast<int32_t>(reduction.dtype));
  const double both = reduction.prescale * reduction.postscale;
  if (sums && IsExactIn(both, reduction.dtype)) {
    factors.with_sum = both;
    return factors;
  }
  if (sums && IsExactIn(reduction.prescale, reduction.dtype)) {
    factors.with_sum = reduction.prescale;
  } else {
    factors.before = reduction.prescale != 1.0;
  }
  factors.after = reduction.postscale != 1.0 || reduction.divisor != 1;
  return factors;
}

bool GoesThroughBuffer(size_t tensors, size_t bytes, size_t border) { return tensors > 1 && bytes / tensors < border; }

void LaunchAllreduce(Communicator& communicator, const NcclWork& work, CudaStream stream) {
  const Device& device = communicator.device();
  const int type = NcclTypeOf(work.reduction.SumDType()), op = NcclOpOf(communicator, work.reduction);
  const size_t element = SizeOf(work.reduction.dtype);
  if (!work.through_buffer) {
    Missing missing(communicator, work.parts, stream);
    return communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
      for (const DevicePart& part : work.parts.all()) {
        const CudaAddress none = part.input ? 0 : missing.Take(part.bytes);
        const int result =
            nccl.all_reduce(PointerTo(part.input ? part.input : none), WritableAt(part.output ? part.output : none),
                            part.bytes / element, type, op, comm, stream);
        communicator.Check(result, "allreduce");
      }
    });
  }
  ThroughBuffer(communicator, work, stream, [&](size_t begin, size_t end, CudaAddress buffer) {
    FillBuffer(communicator, work, begin, end, buffer, stream);
    communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
      const size_t count = (end - begin) / element;
      communicator.Check(nccl.all_reduce(PointerTo(buffer), WritableAt(buffer), count, type, op, comm, stream),
                         "allreduce");
    });
    EmptyBuffer(device, work, begin, end, buffer, stream);
  });
}

// Reduce each part to its owner, because members may get different numbers of rows.
void LaunchReducescatter(Communicator& communicator, const NcclWork& work, CudaStream stream) {
  const Device& device = communicator.device();
  const int type = NcclTypeOf(work.reduction.SumDType()), op = NcclOpOf(communicator, work.reduction);
  const size_t element = SizeOf(work.reduction.dtype);
  const std::vector<DevicePart>& parts = work.parts.all();
  const auto reduce = [&](const Nccl& nccl, NcclComm comm, CudaAddress from, CudaAddress to, size_t bytes, int owner) {
    const int result = nccl.reduce(PointerTo(from), WritableAt(to), bytes / element, type, op, owner, comm, stream);
    communicator.Check(result, "reduce");
  };
  if (!work.through_buffer) {
    return communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
      for (const DevicePart& tensor : work.even) {
        const int result = nccl.reduce_scatter(PointerTo(tensor.input), WritableAt(tensor.output),
                                               tensor.bytes / element, type, op, comm, stream);
        communicator.Check(result, "reducescatter");
      }
      for (size_t i = 0; work.even.empty() && i < parts.size(); ++i) {
        reduce(nccl, comm, parts[i].input, parts[i].output, parts[i].bytes, work.owners[i]);
      }
    });
  }
  ThroughBuffer(communicator, work, stream, [&](size_t begin, size_t end, CudaAddress buffer) {
    FillBuffer(communicator, work, begin, end, buffer, stream);
    communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
      for (size_t i = 0; i < parts.size();) {  // adjacent parts of one member are reduced in one call
        size_t last = i;
        while (last + 1 < parts.size() && work.owners[last + 1] == work.owners[i]) ++last;
        const size_t from = std::max(parts[i].begin, begin);
        const size_t to = std::min((parts[last].begin + parts[last].bytes + kUnit - 1) / kUnit * kUnit, end);
        const CudaAddress at = buffer + (from - begin) * work.reduction.SumRatio();
        if (from < to) reduce(nccl, comm, at, at, to - from, work.owners[i]);
        i = last + 1;
      }
    });
    EmptyBuffer(device, work, begin, end, buffer, stream);
  });
}

void LaunchBroadcast(Communicator& communicator, const NcclWork& work, CudaStream stream) {
  const Device& device = communicator.device();
  const auto give = [&](const Nccl& nccl, NcclComm comm, CudaAddress from, CudaAddress to, size_t bytes) {
    const int result = nccl.broadcast(PointerTo(from), WritableAt(to), bytes, kNcclUint8, work.root, comm, stream);
    communicator.Check(result, "broadcast");
  };
  if (!work.through_buffer) {
    return communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
      for (const DevicePart& part : work.parts.all()) give(nccl, comm, part.input, part.output, part.bytes);
    });
  }
  ThroughBuffer(communicator, work, stream, [&](size_t begin, size_t end, CudaAddress buffer) {
    if (communicator.me() == work.root) work.parts.Gather(device, begin, end, buffer, stream);
    communicator.Launch([&](const Nccl& nccl, NcclComm comm) { give(nccl, comm, buffer, buffer, end - begin); });
    work.parts.Scatter(device, begin, end, buffer, stream);
  });
}

namespace {

// Send from every member to every member. This includes sending to itself, for which NCCL makes a copy.
void ExchangeStretches(Communicator& communicator, const NcclExchange::Tensor& tensor, const Nccl& nccl, NcclComm comm,
                       CudaStream stream) {
  for (int j = 0; j < communicator.members(); ++j) {
    const NcclExchange::Stretch& sent = tensor.sent[static_cast<size_t>(j)];
    const NcclExchange::Stretch& received = tensor.received[static_cast<size_t>(j)];
    if (sent.bytes) {
      communicator.Check(nccl.send(PointerTo(sent.address), sent.bytes, kNcclUint8, j, comm, stream), "send");
    }
    if (received.bytes) {
      const int result = nccl.receive(WritableAt(received.address), received.bytes, kNcclUint8, j, comm, stream);
      communicator.Check(result, "receive");
    }
  }
}

// Gather in one call if all members contribute equally. Otherwise each member broadcasts its part.
void GatherStretches(Communicator& communicator, const NcclExchange::Tensor& tensor, const Nccl& nccl, NcclComm comm,
                     CudaStream stream) {
  const std::vector<NcclExchange::Stretch>& parts = tensor.received;
  const CudaAddress own = tensor.sent[0].address;
  const auto same = [&](const NcclExchange::Stretch& part) { return part.bytes == parts[0].bytes; };
  if (std::all_of(parts.begin(), parts.end(), same)) {
    if (parts[0].bytes == 0) return;
    const int result =
        nccl.all_gather(PointerTo(own), WritableAt(parts[0].address), parts[0].bytes, kNcclUint8, comm, stream);
    return communicator.Check(result, "allgather");
  }
  for (int j = 0; j < communicator.members(); ++j) {
    const NcclExchange::Stretch& part = parts[static_cast<size_t>(j)];
    if (part.bytes == 0) continue;
    const CudaAddress from = j == communicator.me() ? own : part.address;
    const int result =
        nccl.broadcast(PointerTo(from), WritableAt(part.address), part.bytes, kNcclUint8, j, comm, stream);
    communicator.Check(result, "allgather");
  }
}

}  // namespace

void LaunchExchange(Communicator& communicator, const NcclExchange& exchange, CudaStream stream) {
  communicator.Launch([&](const Nccl& nccl, NcclComm comm) {
    for (const NcclExchange::Tensor& tensor : exchange.tensors) {
      const auto run = tensor.gathers ? GatherStretches : ExchangeStretches;
      run(communicator, tensor, nccl, comm, stream);
    }
  });
}

// ---- the state machine

NcclLaunches::NcclLaunches(Devices* devices, std::shared_ptr<Communicator> communicator)
    : devices_(devices), communicator_(std::move(communicator)), revoked_(std::make_shared<std::atomic<bool>>(false)) {}

NcclLaunches::~NcclLaunches() { revoked_->store(true); }

void NcclLaunches::Put(DeviceOrder order, Work work, std::function<void()> launched) {
  job_ = devices_->launcher().Put([communicator = communicator_, order = std::move(order), work = std::move(work),
                                   launched = std::move(launched), revoked = revoked_, calls = devices_->calls()] {
    if (revoked->load()) return;
    Device& device = communicator->device();
    const Device::Scope scope(device);
    for (const auto& mark : order.after) device.WaitFor(mark->event(), order.stream);
    device.FollowOthers(communicator.get(), order.stream);
    if (calls) calls->FollowOthers(device, communicator.get(), order.stream);
    work(*communicator, order.stream);
    communicator->Launched(order.stream);
    if (calls) calls->Launched(&device, communicator.get(), order.stream);
    if (launched) launched();
  });
}

bool NcclLaunches::IsOver() {
  if (!job_->done.load(std::memory_order_acquire)) return false;
  if (job_->error.empty()) {
    job_.reset();
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (failed_ == decltype(failed_){}) failed_ = now;
  if (now - failed_ < kBeforeBlame) return false;
  throw DeviceError(job_->error);
}

NcclMachine::NcclMachine(Devices* devices, std::shared_ptr<Communicator> communicator, DeviceOrder order,
                         NcclLaunches::Work work)
    : launches_(devices, std::move(communicator)), order_(std::move(order)), work_(std::move(work)) {}

Machine::Step NcclMachine::Advance() {
  if (!launches_.under_way()) {
    launches_.Put(std::move(order_), std::move(work_));
    return Step::kMoved;
  }
  return launches_.IsOver() ? Step::kDone : Step::kStuck;
}

}  // namespace hvd
