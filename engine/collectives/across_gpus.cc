// SPDX-License-Identifier: Apache-2.0
#include "collectives/across_gpus.h"

#include <utility>

namespace hvd {

AcrossGpus::AcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order, size_t size,
                       size_t chunk)
    : layout_(meeting.layout()),
      me_(meeting.me()),
      link_(meeting.mates()->link()),
      parts_(std::move(parts)),
      stream_(order.stream),
      slots_(*meeting.mates()->slots()),
      launches_(devices, meeting.communicator()),
      ready_(std::move(order.after)),
      size_(size),
      chunk_(chunk) {}

// Mark the work of an aborted batch as launched, because device memory must not be freed while that work still runs.
AcrossGpus::~AcrossGpus() {
  if (stage_ == Stage::kOver) return;
  try {
    const Device::Scope scope(device());
    link_->device().Launched(stream_);
  } catch (const DeviceError&) {
  }
}

// Launch everything that can be launched. A chunk takes two slot indices: at the first, all members of the GPU publish
// their contributions; at the second, the leader publishes the result.
Machine::Step AcrossGpus::Advance() {
  const Device::Scope scope(device());
  for (const auto& mark : ready_) device().WaitFor(mark->event(), stream_);
  ready_.clear();
  const auto moves = [this] {
    switch (stage_) {
      case Stage::kFill:
        return FillSlot();
      case Stage::kJoin:
        return JoinSlots();
      case Stage::kExchange:
        return PassOn();
      case Stage::kTake:
        return TakeResult();
      default:
        return false;
    }
  };
  bool moved = false;
  while (moves()) moved = true;
  if (stage_ == Stage::kOver) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

bool AcrossGpus::FillSlot() {
  if (begin_ < size_) {
    if (!slots_.MayFill()) return false;
    Fill(begin_, end(), slots_.BeginFill(stream_));
    slots_.EndFill(stream_);
    stage_ = Stage::kJoin;
    return true;
  }
  link_->device().Launched(stream_);
  stage_ = Stage::kOver;
  return true;
}

bool AcrossGpus::JoinSlots() {
  if (!slots_.MayFill()) return false;
  if (!leads()) {  // the other slots are not for this member, and it has no result to publish
    slots_.EndRead(stream_);
    slots_.EndFill(stream_);
    stage_ = Stage::kTake;
    return true;
  }
  if (!slots_.MayRead()) return false;
  std::vector<CudaAddress> sources;
  for (int j = 0; j < link_->members(); ++j) sources.push_back(slots_.BeginRead(j, stream_));
  const CudaAddress result = slots_.BeginFill(stream_);
  Join(begin_, end(), sources, result);
  slots_.EndRead(stream_);
  launches_.Put({stream_, {}}, Exchange(begin_, end(), result));
  stage_ = Stage::kExchange;
  return true;
}

bool AcrossGpus::PassOn() {
  if (!launches_.IsOver()) return false;
  slots_.EndFill(stream_);
  stage_ = Stage::kTake;
  return true;
}

bool AcrossGpus::TakeResult() {
  if (!slots_.MayRead()) return false;
  Take(begin_, end(), slots_.BeginRead(0, stream_));
  slots_.EndRead(stream_);
  begin_ = end();
  stage_ = Stage::kFill;
  return true;
}

// ---- reductions

ReduceAcrossGpus::ReduceAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order,
                                   const Reduction& reduction)
    : AcrossGpus(devices, meeting, parts, std::move(order), parts.size(),
                 // Divide by the ratio of sizes, because a slot must hold the sums, which may be wider than the
                 // elements.
                 meeting.mates()->link()->slot_bytes() / reduction.SumRatio() / kUnit * kUnit),
      reduction_(reduction) {}

void ReduceAcrossGpus::Fill(size_t begin, size_t end, CudaAddress slot) {
  parts_.Gather(device(), begin, end, slot, stream_);
  if (reduction_.prescale == 1.0) return;
  DeviceParts own;  // scale the slot itself, in place
  own.Add(slot, slot, end - begin);
  own.Reduce(device(), {reduction_.dtype, ReduceOp::kSum, 1.0, reduction_.prescale, 1}, 0, end - begin, {slot},
             stream_);
}

void ReduceAcrossGpus::Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) {
  if (reduction_.IsWidened()) return WidenSum(device(), reduction_, end - begin, sources, result, stream_);
  DeviceParts whole;
  whole.Add(result, result, end - begin);
  whole.Reduce(device(), {reduction_.dtype, reduction_.op, 1.0, 1.0, 1}, 0, end - begin, sources, stream_);
}

NcclLaunches::Work ReduceAcrossGpus::Exchange(size_t begin, size_t end, CudaAddress result) const {
  NcclWork work;
  work.parts.Add(result, result, (end - begin) * reduction_.SumRatio());
  work.reduction = {reduction_.SumDType(), reduction_.op, 1.0, 1.0, 1};
  return [work](Communicator& communicator, CudaStream stream) { LaunchAllreduce(communicator, work, stream); };
}

void ReduceAcrossGpus::Take(size_t begin, size_t end, CudaAddress result) {
  if (reduction_.IsWidened()) return parts_.NarrowAverages(device(), reduction_, begin, end, result, stream_);
  if (reduction_.postscale == 1.0 && reduction_.divisor == 1) {
    return parts_.Scatter(device(), begin, end, result, stream_);
  }
  Reduction scaling = reduction_;
  scaling.op = ReduceOp::kSum;  // there is one source, so that only the scaling applies
  parts_.Reduce(device(), scaling, begin, end, {result}, stream_);
}

// ---- broadcasts

BroadcastAcrossGpus::BroadcastAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts,
                                         DeviceOrder order, int root)
    : AcrossGpus(devices, meeting, parts, std::move(order), parts.size(), meeting.mates()->link()->slot_bytes()),
      root_(root) {}

void BroadcastAcrossGpus::Fill(size_t begin, size_t end, CudaAddress slot) {
  if (me_ == root_) parts_.Gather(device(), begin, end, slot, stream_);
}

void BroadcastAcrossGpus::Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) {
  const std::vector<int>& here = layout_.MembersOn(layout_.GpuOf(me_));
  const auto root = std::find(here.begin(), here.end(), root_);
  if (root == here.end()) return;  // the root is on another GPU
  device().CopyOn(result, sources[static_cast<size_t>(root - here.begin())], end - begin, stream_);
}

NcclLaunches::Work BroadcastAcrossGpus::Exchange(size_t begin, size_t end, CudaAddress result) const {
  NcclWork work;
  work.parts.Add(result, result, end - begin);
  work.root = layout_.GpuOf(root_);
  return [work](Communicator& communicator, CudaStream stream) { LaunchBroadcast(communicator, work, stream); };
}

void BroadcastAcrossGpus::Take(size_t begin, size_t end, CudaAddress result) {
  parts_.Scatter(device(), begin, end, result, stream_);
}

// ---- allgathers

AllgatherAcrossGpus::AllgatherAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts own,
                                         std::vector<DeviceParts> from, DeviceOrder order)
    : AcrossGpus(devices, meeting, std::move(own), std::move(order), LongestOf(from), ChunkOf(meeting)),
      from_(std::move(from)) {}

size_t AllgatherAcrossGpus::ChunkOf(const NcclMeeting& meeting) {
  const size_t places = static_cast<size_t>(meeting.layout().gpus()) * meeting.layout().MostOnOne();
  return meeting.mates()->link()->slot_bytes() / places / kUnit * kUnit;
}

void AllgatherAcrossGpus::Fill(size_t begin, size_t end, CudaAddress slot) {
  parts_.Gather(device(), begin, end, slot, stream_);
}

// Place the contributions of one GPU's members side by side.
void AllgatherAcrossGpus::Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) {
  const int gpu = layout_.GpuOf(me_);
  CudaAddress place = result + static_cast<size_t>(gpu) * layout_.MostOnOne() * (end - begin);
  for (size_t i = 0; i < sources.size(); ++i, place += end - begin) {
    const size_t run = from_[static_cast<size_t>(layout_.MembersOn(gpu)[i])].size();
    if (begin < run) device().CopyOn(place, sources[i], std::min(end, run) - begin, stream_);
  }
}

NcclLaunches::Work AllgatherAcrossGpus::Exchange(size_t begin, size_t end, CudaAddress result) const {
  const size_t each = layout_.MostOnOne() * (end - begin);
  NcclExchange::Tensor whole;
  whole.gathers = true;
  for (int gpu = 0; gpu < layout_.gpus(); ++gpu) {
    whole.sent.push_back({result + static_cast<size_t>(layout_.GpuOf(me_)) * each, each});
    whole.received.push_back({result + static_cast<size_t>(gpu) * each, each});
  }
  return [exchange = NcclExchange{{whole}}](Communicator& communicator, CudaStream stream) {
    LaunchExchange(communicator, exchange, stream);
  };
}

void AllgatherAcrossGpus::Take(size_t begin, size_t end, CudaAddress result) {
  for (int gpu = 0; gpu < layout_.gpus(); ++gpu) {
    CudaAddress place = result + static_cast<size_t>(gpu) * layout_.MostOnOne() * (end - begin);
    for (const int member : layout_.MembersOn(gpu)) {
      const DeviceParts& run = from_[static_cast<size_t>(member)];
      if (begin < run.size()) run.Scatter(device(), begin, std::min(end, run.size()), place, stream_);
      place += end - begin;
    }
  }
}

}  // namespace hvd
