// SPDX-License-Identifier: Apache-2.0
// How long devices take for what was launched there. Operations that ranks have not agreed on are never done if one of
// them calls something else, or nothing, and nobody else would notice.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "devices/device.h"

namespace hvd {

class DeviceMark;

class LaunchWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Something of this name is on the stream now; with a Scope.
  void Launched(Device* device, CudaStream stream, std::string name);
  // The name of what is not done although it was launched that long ago; empty: there is none. One launch is watched,
  // until it is done, and then the newest: an operation that hangs is found at the latest after twice the time.
  std::string Overdue(Clock::time_point now, Clock::duration limit);

 private:
  struct Launch {
    bool IsDone() const;

    std::shared_ptr<DeviceMark> mark;  // null: there is none
    Clock::time_point at;
    std::string name;
  };

  std::mutex mutex_;
  Launch watched_, newest_;
};

}  // namespace hvd
