// SPDX-License-Identifier: Apache-2.0
#include "collectives/on_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kFewParts = 64;
// Gap between two parts above which a separate launch is cheaper than covering the gap.
constexpr size_t kWideGap = size_t{64} << 10;

}  // namespace

// ---- the parts of a batch

void DeviceParts::Add(CudaAddress input, CudaAddress output, size_t bytes) {
  if (bytes == 0) return;
  parts_.push_back({input, output, bytes, size_});
  size_ += (bytes + kUnit - 1) / kUnit * kUnit;
}

void DeviceParts::AddAt(size_t begin, CudaAddress tensor, size_t bytes) {
  if (bytes == 0) return;
  if (!parts_.empty() && parts_.back().begin + parts_.back().bytes == begin) {
    parts_.back().bytes += bytes;
  } else {
    parts_.push_back({tensor, tensor, bytes, begin});
  }
  size_ = (begin + bytes + kUnit - 1) / kUnit * kUnit;
}

template <typename Launch>
void DeviceParts::InLaunches(size_t begin, size_t end, CudaAddress DevicePart::* side, Launch launch) const {
  const auto after = [](size_t at, const DevicePart& part) { return at < part.begin; };
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin, after);
  if (part != parts_.begin()) --part;
  Segment segments[kMostSegments];
  int count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    const Segment& last = segments[count - 1];
    launch(segments, count, segments[0].begin, (last.begin + last.bytes + kUnit - 1) / kUnit * kUnit);
    count = 0;
  };
  for (; part != parts_.end() && part->begin < end; ++part) {
    const size_t from = std::max(part->begin, begin), to = std::min(part->begin + part->bytes, end);
    if (from >= to || (*part).*side == 0) continue;
    // Split at a large gap, because a launch covers everything from its first to its last segment.
    if (count > 0 && from > segments[count - 1].begin + segments[count - 1].bytes + kWideGap) flush();
    segments[count++] = {(*part).*side + (from - part->begin), from, to - from};
    if (count == kMostSegments) flush();
  }
  flush();
}

void DeviceParts::Gather(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const {
  for (const DevicePart& part : parts_) {  // happens only on a rank that has joined, which is rare
    const size_t from = std::max(part.begin, begin), to = std::min(part.begin + part.bytes, end);
    if (part.input == 0 && from < to) device.Zero(flat + (from - begin), to - from, stream);
  }
  InLaunches(begin, end, &DevicePart::input, [&](const Segment* segments, int count, size_t first, size_t last) {
    CopyTask task{flat + (first - begin), first, last, 1, count, {}};
    std::copy_n(segments, count, task.segments);
    device.Copy(task, stream);
  });
}

void DeviceParts::Scatter(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const {
  InLaunches(begin, end, &DevicePart::output, [&](const Segment* segments, int count, size_t first, size_t last) {
    CopyTask task{flat + (first - begin), first, last, 0, count, {}};
    std::copy_n(segments, count, task.segments);
    device.Copy(task, stream);
  });
}

namespace {

ReduceTask TaskOf(const Reduction& reduction, size_t sources, size_t targets) {
  ReduceTask task{};
  task.factor = reduction.postscale;
  task.divisor = reduction.divisor;
  task.op = static_cast<int32_t>(reduction.op);
  if (reduction.dtype == DType::kBool) {  // for bool, sum and maximum are "or", and the others "and", as on the host
    const bool any = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax;
    task.op = static_cast<int32_t>(any ? ReduceOp::kMax : ReduceOp::kMin);
    task.factor = 1.0;
  }
  task.members = static_cast<int32_t>(sources);
  task.others = static_cast<int32_t>(targets);
  return task;
}

// Complete the task of an average and launch it.
void LaunchAverage(const Device& device, const Reduction& reduction, const ReduceTask& sums, bool from_sums,
                   bool to_sums, CudaStream stream) {
  AverageTask task{sums, static_cast<int32_t>(SizeOf(reduction.SumDType())), from_sums, to_sums};
  if (reduction.postscale != 1.0) {
    task.reduce.factor = reduction.postscale / static_cast<double>(reduction.divisor);
    task.reduce.divisor = 1;
  }
  device.Average(reduction.dtype, task, stream);
}

}  // namespace

void DeviceParts::Reduce(const Device& device, const Reduction& reduction, size_t begin, size_t end,
                         const std::vector<CudaAddress>& sources, CudaStream stream,
                         const std::vector<CudaAddress>& targets) const {
  ReduceTask task = TaskOf(reduction, sources.size(), targets.size());
  InLaunches(begin, end, &DevicePart::output, [&](const Segment* segments, int count, size_t first, size_t last) {
    task.begin = first;
    task.end = last;
    task.count = count;
    for (size_t j = 0; j < sources.size(); ++j) task.sources[j] = sources[j] + (first - begin);
    for (size_t j = 0; j < targets.size(); ++j) task.targets[j] = targets[j] + (first - begin);
    std::copy_n(segments, count, task.segments);
    if (reduction.IsWidened()) return LaunchAverage(device, reduction, task, false, false, stream);
    device.Reduce(reduction.dtype, task, stream);
  });
}

void DeviceParts::NarrowAverages(const Device& device, const Reduction& reduction, size_t begin, size_t end,
                                 CudaAddress sums, CudaStream stream) const {
  ReduceTask task = TaskOf(reduction, 1, 0);
  InLaunches(begin, end, &DevicePart::output, [&](const Segment* segments, int count, size_t first, size_t last) {
    task.begin = first;
    task.end = last;
    task.count = count;
    task.sources[0] = sums + (first - begin) * reduction.SumRatio();
    std::copy_n(segments, count, task.segments);
    LaunchAverage(device, reduction, task, true, false, stream);
  });
}

void WidenSum(const Device& device, const Reduction& reduction, size_t bytes, const std::vector<CudaAddress>& sources,
              CudaAddress sums, CudaStream stream) {
  ReduceTask task = TaskOf(reduction, sources.size(), 0);
  task.end = (bytes + kUnit - 1) / kUnit * kUnit;
  task.count = 1;
  task.segments[0] = {sums, 0, bytes};
  std::copy(sources.begin(), sources.end(), task.sources);
  LaunchAverage(device, reduction, task, false, true, stream);
}

// Copy few parts with the device's copy engines, and many with one kernel.
void DeviceParts::CopyDown(const Device& device, std::byte* flat, CudaStream stream) const {
  if (parts_.size() > kFewParts) return Gather(device, 0, size_, AddressOf(flat), stream);
  for (const DevicePart& part : parts_) device.CopyDown(flat + part.begin, part.input, part.bytes, stream);
}

void DeviceParts::CopyUp(const Device& device, const std::byte* flat, CudaStream stream) const {
  if (parts_.size() > kFewParts) return Scatter(device, 0, size_, AddressOf(flat), stream);
  for (const DevicePart& part : parts_) device.CopyUp(part.output, flat + part.begin, part.bytes, stream);
}

// ---- setup negotiation

// Return true if the flags fit into the lane: they use the last whole page of its slots, where no message of the
// negotiation lies.
bool DeviceMeeting::HasRoom(const Lane& lane) {
  return lane.slots() >= 3 && lane.slots() <= DeviceLink::kMostSlots &&
         lane.slot_bytes() >= std::max(sizeof(DeviceLink::Passport), 2 * DeviceLink::kPageBytes);
}

std::vector<std::byte*> DeviceMeeting::PagesOf(const Lane& lane) {
  std::vector<std::byte*> pages;
  for (int j = 0; j < lane.members(); ++j) {
    std::byte* const end = lane.SlotsOf(j) + static_cast<size_t>(lane.slots()) * lane.slot_bytes();
    const auto past = reinterpret_cast<uintptr_t>(end) % DeviceLink::kPageBytes;
    pages.push_back(end - past - DeviceLink::kPageBytes);
  }
  return pages;
}

DeviceMeeting::DeviceMeeting(Devices* devices, Device* device, Lane* lane, size_t slot_bytes)
    : devices_(devices),
      lane_(lane),
      link_(std::make_shared<DeviceLink>(device, PagesOf(*lane), lane->me(), lane->slots(), slot_bytes)) {}

// Return true once all members' messages of this size have arrived.
bool DeviceMeeting::Hears(size_t bytes) { return FetchAll(*lane_, Lane::Layout::kMulticast, bytes, &heard_); }

Machine::Step DeviceMeeting::Advance() {
  using Step = Machine::Step;
  switch (stage_) {
    case Stage::kBegin:
      job_ = devices_->worker().Put([link = link_] { link->Open(); });
      stage_ = Stage::kOpening;
      return Step::kMoved;
    case Stage::kOpening:
    case Stage::kMapping:
      if (!job_->done.load(std::memory_order_acquire)) return Step::kStuck;
      stage_ = stage_ == Stage::kOpening ? Stage::kTelling : Stage::kAnswering;
      return Step::kMoved;
    case Stage::kTelling:
      if (!lane_->CanPost()) return Step::kStuck;
      std::memcpy(lane_->Slot(), &link_->passport(), sizeof(DeviceLink::Passport));
      lane_->PostMulticast(sizeof(DeviceLink::Passport));
      stage_ = Stage::kHearing;
      return Step::kMoved;
    case Stage::kHearing: {
      if (!Hears(sizeof(DeviceLink::Passport))) return Step::kStuck;
      std::vector<DeviceLink::Passport> all(heard_.size(), link_->passport());
      for (size_t j = 0; j < heard_.size(); ++j) {
        if (static_cast<int>(j) != lane_->me()) std::memcpy(&all[j], heard_[j], sizeof all[j]);
      }
      lane_->Release();
      job_ = devices_->worker().Put([link = link_, all = std::move(all)] { link->Map(all); });
      stage_ = Stage::kMapping;
      return Step::kMoved;
    }
    case Stage::kAnswering: {
      if (!lane_->CanPost()) return Step::kStuck;
      char text[sizeof DeviceLink::Passport::why_not] = {};
      link_->why_not().copy(text, sizeof text - 1);
      std::memcpy(lane_->Slot(), text, sizeof text);
      lane_->PostMulticast(sizeof text);
      stage_ = Stage::kAgreeing;
      return Step::kMoved;
    }
    case Stage::kAgreeing: {
      constexpr size_t kText = sizeof DeviceLink::Passport::why_not;
      if (!Hears(kText)) return Step::kStuck;
      why_not_ = link_->why_not();
      for (size_t j = 0; j < heard_.size() && why_not_.empty(); ++j) {
        if (static_cast<int>(j) == lane_->me()) continue;
        const char* const text = reinterpret_cast<const char*>(heard_[j]);
        why_not_.assign(text, strnlen(text, kText));
      }
      lane_->Release();
      if (!why_not_.empty()) {
        job_ = devices_->worker().Put([link = std::move(link_)]() mutable { link.reset(); });
        link_ = nullptr;
      } else {
        slots_ = std::make_unique<DeviceSlots>(link_.get(), lane_);
      }
      stage_ = Stage::kOver;
      return Step::kDone;
    }
    case Stage::kOver:
      return Step::kDone;
  }
  return Step::kDone;
}

void DeviceMeeting::AwaitOthers(std::chrono::steady_clock::time_point until) const {
  if (slots_) slots_->AwaitAllRead(until);
}

// ---- state machines

DeviceMachine::DeviceMachine(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order,
                             size_t size)
    : link_(std::move(link)),
      slots_(*slots),
      parts_(std::move(parts)),
      stream_(order.stream),
      size_(size),
      ready_(std::move(order.after)) {}

// Mark the work of an aborted batch as launched, because device memory must not be freed while that work still runs.
DeviceMachine::~DeviceMachine() {
  if (filled_ == 0 || taken_ >= size_) return;
  try {
    const Device::Scope scope(link_->device());
    link_->device().Launched(stream_);
  } catch (const DeviceError&) {
  }
}

Machine::Step DeviceMachine::Advance() {
  bool moved = false;
  const Device::Scope scope(link_->device());
  for (const auto& mark : ready_) link_->device().WaitFor(mark->event(), stream_);
  ready_.clear();
  while (filled_ < size_ && slots_.MayFill()) {
    Fill(filled_, EndOf(filled_), slots_.BeginFill(stream_));
    slots_.EndFill(stream_);
    filled_ = EndOf(filled_);
    moved = true;
  }
  while (taken_ < filled_ && MayTake()) {
    Take(taken_, EndOf(taken_));
    slots_.EndRead(stream_);
    taken_ = EndOf(taken_);
    moved = true;
  }
  if (taken_ < size_) return moved ? Step::kMoved : Step::kStuck;
  link_->device().Launched(stream_);
  return Step::kDone;
}

DeviceReduce::DeviceReduce(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order,
                           const Reduction& reduction)
    : DeviceMachine(std::move(link), slots, parts, std::move(order), parts.size()), reduction_(reduction) {}

void DeviceReduce::Fill(size_t begin, size_t end, CudaAddress slot) {
  parts_.Gather(link_->device(), begin, end, slot, stream_);
  if (reduction_.prescale == 1.0) return;
  DeviceParts own;  // scale the slot itself, in place
  own.Add(slot, slot, end - begin);
  own.Reduce(link_->device(), {reduction_.dtype, ReduceOp::kSum, 1.0, reduction_.prescale, 1}, 0, end - begin, {slot},
             stream_);
}

void DeviceReduce::Take(size_t begin, size_t end) {
  std::vector<CudaAddress> sources;
  for (int j = 0; j < link_->members(); ++j) sources.push_back(slots_.BeginRead(j, stream_));
  parts_.Reduce(link_->device(), reduction_, begin, end, sources, stream_);
}

DeviceDirect::DeviceDirect(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, std::vector<DirectRun> runs,
                           DeviceOrder order, const Reduction& reduction)
    : DeviceMachine(std::move(link), slots, {}, std::move(order), 1), runs_(std::move(runs)), reduction_(reduction) {}

// Scale this member's tensors in place, and round them as they would be rounded in a slot.
void DeviceDirect::Fill(size_t, size_t, CudaAddress) {
  if (reduction_.prescale == 1.0) return;
  const Reduction scaling{reduction_.dtype, ReduceOp::kSum, 1.0, reduction_.prescale, 1};
  for (const DirectRun& run : runs_) {
    run.parts.Reduce(link_->device(), scaling, 0, run.parts.size(), {run.bases[static_cast<size_t>(link_->me())]},
                     stream_);
  }
}

bool DeviceDirect::MayTake() const { return slots_.MayRead() && (link_->me() == worker() || slots_.HasRead(worker())); }

void DeviceDirect::Take(size_t, size_t) {
  if (link_->me() != worker()) return slots_.AwaitRead(worker(), stream_);
  for (int j = 0; j < link_->members(); ++j) slots_.BeginRead(j, stream_);
  for (const DirectRun& run : runs_) {
    std::vector<CudaAddress> others = run.bases;
    others.erase(others.begin() + link_->me());
    run.parts.Reduce(link_->device(), reduction_, 0, run.parts.size(), run.bases, stream_, others);
  }
}

void DeviceBroadcast::Fill(size_t begin, size_t end, CudaAddress slot) {
  if (link_->me() == root_) parts_.Gather(link_->device(), begin, end, slot, stream_);
}

void DeviceBroadcast::Take(size_t begin, size_t end) {
  const CudaAddress slot = slots_.BeginRead(root_, stream_);
  parts_.Scatter(link_->device(), begin, end, slot, stream_);
}

size_t LongestOf(const std::vector<DeviceParts>& runs) {
  size_t longest = 0;
  for (const DeviceParts& run : runs) longest = std::max(longest, run.size());
  return longest;
}

DeviceExchange::DeviceExchange(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts own,
                               std::vector<DeviceParts> from, DeviceOrder order)
    : DeviceMachine(std::move(link), slots, std::move(own), std::move(order), LongestOf(from)),
      from_(std::move(from)) {}

void DeviceExchange::Fill(size_t begin, size_t end, CudaAddress slot) {
  parts_.Gather(link_->device(), begin, end, slot, stream_);
}

void DeviceExchange::Take(size_t begin, size_t end) {
  for (size_t j = 0; j < from_.size(); ++j) {
    if (begin >= from_[j].size()) continue;
    const CudaAddress slot = slots_.BeginRead(static_cast<int>(j), stream_);
    from_[j].Scatter(link_->device(), begin, end, slot, stream_);
  }
}

}  // namespace hvd
