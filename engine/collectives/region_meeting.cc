// SPDX-License-Identifier: Apache-2.0
#include "collectives/region_meeting.h"

#include <cstring>

namespace hvd {

RegionMeeting::RegionMeeting(Devices* devices, Device* device, Lane* lane)
    : devices_(*devices), device_(device), lane_(*lane) {}

RegionMeeting::~RegionMeeting() {
  if (device_->abandoned() || mapped_.empty()) return;
  try {
    const Device::Scope scope(*device_);
    for (const CudaAddress base : mapped_) device_->cuda().memory_unmap(base);
  } catch (const DeviceError&) {
  }
}

const RegionMeeting::Known* RegionMeeting::Find(int member, int64_t number) const {
  const auto found = known_.find({member, number});
  return found == known_.end() ? nullptr : &found->second;
}

void RegionMeeting::Begin(std::vector<int64_t> numbers) {
  numbers_ = std::move(numbers);
  maps_ = std::make_shared<Maps>();
  maps_->device = device_;
  maps_->cards.resize(numbers_.size());
  maps_->bases.resize(numbers_.size(), 0);
  const auto me = static_cast<size_t>(lane_.me());
  // The region cannot have been freed, because tensors lie in it.
  if (const auto own = numbers_[me] < 0 ? nullptr : devices_.regions().Find(numbers_[me])) {
    maps_->cards[me] = {own->handle(), own->bytes()};
    maps_->bases[me] = own->address();
  }
  stage_ = Stage::kTelling;
}

void RegionMeeting::Maps::Make(const std::vector<int64_t>& numbers, int me) {
  try {
    const Device::Scope scope(*device);
    for (size_t j = 0; j < numbers.size(); ++j) {
      if (numbers[j] < 0 || static_cast<int>(j) == me) continue;
      device->Check(device->cuda().memory_import(&bases[j], cards[j].handle, kCudaPeerAccess),
                    "reach another rank's memory from");
    }
  } catch (const DeviceError& error) {
    why_not = error.what();
  }
}

Machine::Step RegionMeeting::Advance() {
  using Step = Machine::Step;
  switch (stage_) {
    case Stage::kTelling:
      if (!lane_.CanPost()) return Step::kStuck;
      std::memcpy(lane_.Slot(), &maps_->cards[static_cast<size_t>(lane_.me())], sizeof(Card));
      lane_.PostMulticast(sizeof(Card));
      stage_ = Stage::kHearing;
      return Step::kMoved;
    case Stage::kHearing:
      if (!FetchAll(lane_, Lane::Layout::kMulticast, sizeof(Card), &heard_)) return Step::kStuck;
      for (size_t j = 0; j < heard_.size(); ++j) {
        if (static_cast<int>(j) != lane_.me()) std::memcpy(&maps_->cards[j], heard_[j], sizeof(Card));
      }
      lane_.Release();
      job_ = devices_.worker().Put([maps = maps_, numbers = numbers_, me = lane_.me()] { maps->Make(numbers, me); });
      stage_ = Stage::kMapping;
      return Step::kMoved;
    case Stage::kMapping:
      if (!job_->done.load(std::memory_order_acquire)) return Step::kStuck;
      stage_ = Stage::kAnswering;
      return Step::kMoved;
    case Stage::kAnswering: {
      if (!lane_.CanPost()) return Step::kStuck;
      char text[kText] = {};
      maps_->why_not.copy(text, kText - 1);
      std::memcpy(lane_.Slot(), text, kText);
      lane_.PostMulticast(kText);
      stage_ = Stage::kAgreeing;
      return Step::kMoved;
    }
    case Stage::kAgreeing:
      if (!FetchAll(lane_, Lane::Layout::kMulticast, kText, &heard_)) return Step::kStuck;
      Settle();
      lane_.Release();
      stage_ = Stage::kOver;
      return Step::kDone;
    case Stage::kOver:
      return Step::kDone;
  }
  return Step::kDone;
}

void RegionMeeting::Settle() {
  std::string why_not = maps_->why_not;
  for (size_t j = 0; j < heard_.size() && why_not.empty(); ++j) {
    const char* const text = reinterpret_cast<const char*>(heard_[j]);
    if (static_cast<int>(j) != lane_.me()) why_not.assign(text, strnlen(text, kText));
  }
  for (size_t j = 0; j < numbers_.size(); ++j) {
    if (numbers_[j] < 0) continue;
    known_[{static_cast<int>(j), numbers_[j]}] = {why_not.empty() ? maps_->bases[j] : 0,
                                                  static_cast<size_t>(maps_->cards[j].bytes)};
    if (maps_->bases[j] && static_cast<int>(j) != lane_.me()) mapped_.push_back(maps_->bases[j]);
  }
  if (!why_not.empty()) why_not_ = why_not;
}

}  // namespace hvd
