// SPDX-License-Identifier: Apache-2.0
#include "devices/launch_watch.h"

#include <utility>

#include "devices/devices.h"

namespace hvd {

bool LaunchWatch::Launch::IsDone() const { return !mark || mark->IsDone(); }

void LaunchWatch::Launched(Device* device, CudaStream stream, std::string name) {
  Launch launch{std::make_shared<DeviceMark>(device, device->Mark(stream)), Clock::now(), std::move(name)};
  std::lock_guard<std::mutex> lock(mutex_);
  newest_ = std::move(launch);
  if (!watched_.mark) watched_ = newest_;
}

std::string LaunchWatch::Overdue(Clock::time_point now, Clock::duration limit) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (watched_.IsDone()) watched_ = std::exchange(newest_, {});
  if (watched_.IsDone()) watched_ = {};
  return watched_.mark && now - watched_.at >= limit ? watched_.name : "";
}

}  // namespace hvd
