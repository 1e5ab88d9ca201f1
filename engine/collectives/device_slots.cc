// SPDX-License-Identifier: Apache-2.0
#include "collectives/device_slots.h"

#include <thread>

namespace hvd {

bool DeviceSlots::Tell() {
  bool told = false;
  for (; !filling_.empty() && (!filling_.front() || filling_.front()->IsDone()); filling_.pop_front()) {
    lane_->PostNothing(1);
    told = true;
  }
  for (; !reading_.empty() && reading_.front()->IsDone(); reading_.pop_front()) {
    lane_->Release();
    told = true;
  }
  return told;
}

void DeviceSlots::Filled(bool by_launch) {
  filling_.push_back(by_launch ? std::make_unique<DeviceMark>(device_, device_->Mark(device_->kernels())) : nullptr);
}

void DeviceSlots::Read() {
  reading_.push_back(std::make_unique<DeviceMark>(device_, device_->Mark(device_->kernels())));
}

void DeviceSlots::AwaitAllRead(std::chrono::steady_clock::time_point until) {
  try {
    const Device::Scope scope(*device_);
    for (;;) {
      Tell();
      const bool all = filling_.empty() && reading_.empty() && lane_->AllReleased();
      if (all || std::chrono::steady_clock::now() > until) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const DeviceError&) {  // who leaves because of it has been told
  }
}

}  // namespace hvd
