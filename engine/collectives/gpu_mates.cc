// SPDX-License-Identifier: Apache-2.0
#include "collectives/gpu_mates.h"

#include <utility>

namespace hvd {

GpuMates::GpuMates(Devices* devices, Device* device, std::shared_ptr<Lane> lane, size_t slot_bytes)
    : devices_(devices), lane_(std::move(lane)) {
  if (!lane_) {
    why_not_ = "it does not share memory of the host with all ranks of its GPU";
  } else if (lane_->members() > kMostSources) {
    why_not_ = "more than " + std::to_string(kMostSources) + " ranks share its GPU";
  } else if (!DeviceMeeting::HasRoom(*lane_)) {
    why_not_ = "HOROVOD_CHUNK_SLOTS is less than 3, or more than " + std::to_string(DeviceLink::kMostSlots);
  } else {
    meeting_ = std::make_unique<DeviceMeeting>(devices_, device, lane_.get(), slot_bytes);
  }
}

Machine::Step GpuMates::Advance() {
  if (!meeting_) return Machine::Step::kDone;
  const Machine::Step step = meeting_->Advance();
  if (step == Machine::Step::kDone) why_not_ = meeting_->why_not();
  return step;
}

void GpuMates::LetGo() const {
  if (meeting_ && meeting_->slots()) meeting_->slots()->LetGo();
}

void GpuMates::AwaitOthers(std::chrono::steady_clock::time_point until) const {
  if (meeting_) meeting_->AwaitOthers(until);
}

void GpuMates::LeaveLater(std::chrono::steady_clock::time_point until) {
  std::shared_ptr<DeviceLink> link = meeting_ ? meeting_->link() : nullptr;
  meeting_.reset();
  if (!link) return;
  // Capture the lane first, so that it is destroyed last, because it contains the link's flags.
  devices_->worker().Put([lane = std::move(lane_), link = std::move(link), until]() mutable {
    link->device().AwaitIdle(until);
    link.reset();
  });
}

}  // namespace hvd
