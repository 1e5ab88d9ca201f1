// SPDX-License-Identifier: Apache-2.0
#include "collectives/on_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace hvd {
namespace {

const size_t kFewParts = getenv("X_FEW") ? static_cast<size_t>(atoi(getenv("X_FEW"))) : 64;

}  // namespace

// ---- the parts of a batch

void DeviceParts::Add(CudaAddress input, CudaAddress output, size_t bytes) {
  if (bytes == 0) return;
  parts_.push_back({input, output, bytes, size_});
  size_ += (bytes + kUnit - 1) / kUnit * kUnit;
}

std::vector<DeviceParts::Piece> DeviceParts::PiecesOf(size_t begin, size_t end, CudaAddress DevicePart::*side) const {
  const auto after = [](size_t at, const DevicePart& part) { return at < part.begin; };
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin, after);
  if (part != parts_.begin()) --part;
  std::vector<Piece> pieces;
  for (; part != parts_.end() && part->begin < end; ++part) {
    const size_t from = std::max(part->begin, begin), to = std::min(part->begin + part->bytes, end);
    if (from < to && (*part).*side != 0) pieces.push_back({(*part).*side + (from - part->begin), from, to - from});
  }
  return pieces;
}

void DeviceParts::Launch(const Device& device, const std::vector<Piece>& pieces, size_t begin, CudaAddress flat,
                         bool gathers, CudaStream stream) {
  for (size_t first = 0; first < pieces.size(); first += kMostSegments) {
    const size_t count = std::min(pieces.size() - first, static_cast<size_t>(kMostSegments));
    const Piece& last = pieces[first + count - 1];
    CopyTask task{flat + (pieces[first].begin - begin), pieces[first].begin, last.begin + last.bytes, gathers,
                  static_cast<int32_t>(count), {}};
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces[first + i];
      task.segments[i] = {piece.address, piece.begin, piece.bytes};
    }
    device.Copy(task, stream);
  }
}

void DeviceParts::Fill(const Device& device, size_t begin, size_t end, CudaAddress flat) const {
  for (const DevicePart& part : parts_) {  // of a rank that has joined; rare
    const size_t from = std::max(part.begin, begin), to = std::min(part.begin + part.bytes, end);
    if (part.input == 0 && from < to) device.Zero(flat + (from - begin), to - from, device.filling());
  }
  const std::vector<Piece> pieces = PiecesOf(begin, end, &DevicePart::input);
  if (pieces.size() > kFewParts) return Launch(device, pieces, begin, flat, true, device.filling());
  for (const Piece& it : pieces) device.Copy(flat + (it.begin - begin), it.address, it.bytes, device.filling());
}

void DeviceParts::Take(const Device& device, size_t begin, size_t end, CudaAddress flat) const {
  const std::vector<Piece> pieces = PiecesOf(begin, end, &DevicePart::output);
  if (pieces.size() > kFewParts) return Launch(device, pieces, begin, flat, false, device.taking());
  for (const Piece& it : pieces) device.Copy(it.address, flat + (it.begin - begin), it.bytes, device.taking());
}

// Few are copied by the device's own engines, which need not wait for a turn on its processors; many by one kernel.
void DeviceParts::CopyDown(const Device& device, std::byte* flat) const {
  if (parts_.size() > kFewParts) return Fill(device, 0, size_, reinterpret_cast<CudaAddress>(flat));
  for (const DevicePart& part : parts_) {
    device.Check(device.cuda().copy_down(flat + part.begin, part.input, part.bytes, device.filling()), "copy from");
  }
}

void DeviceParts::CopyUp(const Device& device, const std::byte* flat) const {
  if (parts_.size() > kFewParts) return Take(device, 0, size_, reinterpret_cast<CudaAddress>(flat));
  for (const DevicePart& part : parts_) {
    device.Check(device.cuda().copy_up(part.output, flat + part.begin, part.bytes, device.taking()), "copy to");
  }
}

// ---- the meeting

DeviceMeeting::DeviceMeeting(Devices* devices, Device* device, Lane* lane, size_t slot_bytes)
    : devices_(devices),
      lane_(lane),
      link_(std::make_shared<DeviceLink>(device, lane->members(), lane->me(), lane->slots(), slot_bytes)) {}

// True once every member's message has come.
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
      }
      stage_ = Stage::kOver;
      return Step::kDone;
    }
    case Stage::kOver:
      return Step::kDone;
  }
  return Step::kDone;
}

// ---- machines

DeviceMachine::DeviceMachine(std::shared_ptr<DeviceLink> link, Exchange* lanes, DeviceParts parts,
                             std::vector<std::shared_ptr<DeviceMark>> ready)
    : link_(std::move(link)), lanes_(*lanes), parts_(std::move(parts)), ready_(std::move(ready)) {}

Range DeviceMachine::ShareOfOwner(size_t chunk, int index) const {
  return ShareOf({chunk, EndOf(chunk) - chunk}, owners(), index);
}

Machine::Step DeviceMachine::Advance() {
  bool moved = false;
  const Device::Scope scope(link_->device());
  while (filled_ < parts_.size() && MayFill()) {
    FillNext();
    moved = true;
  }
  while (reduced_ < filled_ && lanes_.there->AllPosted()) {
    ReduceNext();
    moved = true;
  }
  while (taken_ < reduced_ && lanes_.back->AllPosted()) {
    TakeNext();
    moved = true;
  }
  if (taken_ == parts_.size()) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

// Whether all that was to be launched on the slot's last chunk is.
bool DeviceMachine::MayFill() const {
  if (link_->turn.filled >= link_->turn.taken + static_cast<uint64_t>(link_->slots())) return false;
  const DeviceLink::Use& last = link_->UseOf(link_->SlotAt(link_->turn.filled));
  return lanes_.there->CanPost() && (!last.any || (lanes_.there->ReleasedByOthers() > last.there &&
                                                   lanes_.back->ReleasedByOthers() > last.back));
}

void DeviceMachine::FillNext() {
  const Device& device = link_->device();
  const int slot = link_->SlotAt(link_->turn.filled++);
  DeviceLink::Use& use = link_->UseOf(slot);
  for (const auto& mark : ready_) device.WaitFor(mark->event(), device.filling());
  ready_.clear();
  for (int j = 0; use.any && j < lanes_.members(); ++j) {
    link_->Await(j, kReduced, slot, device.filling());
    link_->Await(j, kTaken, slot, device.filling());
  }
  use.any = true;
  use.there = lanes_.there->posted();
  if (Fills()) parts_.Fill(device, filled_, EndOf(filled_), link_->SlotOf(lanes_.me(), slot));
  link_->Record(kFilled, slot, device.filling());
  lanes_.there->PostNothing(1);
  filled_ = EndOf(filled_);
}

void DeviceMachine::ReduceNext() {
  const Device& device = link_->device();
  const int slot = link_->SlotAt(link_->turn.reduced++);
  for (int index = 0; index < owners(); ++index) {
    if (OwnerAt(index) != lanes_.me()) continue;
    for (int j = 0; j < lanes_.members(); ++j) link_->Await(j, kFilled, slot, device.reducing());
    Reduce(ShareOfOwner(reduced_, index), reduced_, slot);
    link_->Record(kReduced, slot, device.reducing());
  }
  lanes_.there->Release();
  link_->UseOf(slot).back = lanes_.back->posted();
  lanes_.back->PostNothing(1);
  reduced_ = EndOf(reduced_);
}

void DeviceMachine::TakeNext() {
  const Device& device = link_->device();
  const int slot = link_->SlotAt(link_->turn.taken++);
  link_->Await(lanes_.me(), kFilled, slot, device.taking());  // what is written to may be an input
  for (int index = 0; index < owners(); ++index) {
    const Range share = ShareOfOwner(taken_, index);
    if (share.length == 0) continue;
    link_->Await(OwnerAt(index), kReduced, slot, device.taking());
    parts_.Take(device, share.begin, share.begin + share.length,
                link_->SlotOf(OwnerAt(index), slot) + (share.begin - taken_));
  }
  link_->Record(kTaken, slot, device.taking());
  lanes_.back->Release();
  taken_ = EndOf(taken_);
}

void DeviceReduce::Reduce(Range share, size_t chunk, int slot) {
  ReduceTask task{};
  const bool any = reduction_.op == ReduceOp::kSum || reduction_.op == ReduceOp::kMax;
  const bool is_bool = reduction_.dtype == DType::kBool;  // as on the host: or, and
  task.op = static_cast<int32_t>(!is_bool ? reduction_.op : any ? ReduceOp::kMax : ReduceOp::kMin);
  task.prescale = is_bool ? 1.0 : reduction_.prescale;
  task.factor = is_bool ? 1.0 : reduction_.postscale;
  task.divisor = reduction_.divisor;
  task.members = lanes_.members();
  task.bytes = share.length;
  const size_t offset = share.begin - chunk;
  for (int j = 0; j < lanes_.members(); ++j) task.sources[j] = link_->SlotOf(j, slot) + offset;
  task.result = link_->SlotOf(lanes_.me(), slot) + offset;
  link_->device().Reduce(reduction_.dtype, task);
}

}  // namespace hvd
