// SPDX-License-Identifier: Apache-2.0
// Detection of launched work that a device does not finish. An operation launched without negotiation never finishes if
// another rank calls something else, or nothing, and no other part of the engine would notice.
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

  // Record that an operation with this name is on the stream. Call inside a Scope.
  void Launched(Device* device, CudaStream stream, std::string name);
  // Return the name of an operation that was launched at least `limit` ago and is not done, or an empty text. One
  // launch is watched until it is done, and then the newest one, so an operation that hangs is found after at most
  // twice the limit.
  std::string Overdue(Clock::time_point now, Clock::duration limit);

 private:
  struct Launch {
    bool IsDone() const;

    std::shared_ptr<DeviceMark> mark;  // null if nothing is being watched
    Clock::time_point at;
    std::string name;
  };

  std::mutex mutex_;
  Launch watched_, newest_;
};

}  // namespace hvd
