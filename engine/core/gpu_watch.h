// SPDX-License-Identifier: Apache-2.0
// Errors that NCCL reports, and launched work on GPUs that does not finish.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/leaving.h"
#include "core/services.h"
#include "core/set_registry.h"
#include "devices/devices.h"

namespace hvd {

// Owns the time since which NCCL has reported an error.
class GpuWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // All arguments must outlive this object.
  GpuWatch(Devices* devices, const SetRegistry* sets, const Services* services)
      : devices_(*devices), sets_(*sets), services_(*services) {}

  // Return whether the world must end because of work on GPUs. `first`: the first rank that left normally.
  Departures::Verdict Look(Clock::time_point now, const Leaving::First& first);
  // Release everything that waits for another rank on a GPU, because the world has ended.
  void Abandon();
  // Abort NCCL's communicators on this thread, after the last round.
  void AbortCommunicators() const;

 private:
  Departures::Verdict LookAtNccl(Clock::time_point now);
  Departures::Verdict LookAtLaunches(Clock::time_point now, const Leaving::First& first) const;
  std::vector<std::shared_ptr<Communicator>> Communicators() const;

  Devices& devices_;
  const SetRegistry& sets_;
  const Services& services_;
  Clock::time_point nccl_troubled_since_;
};

}  // namespace hvd
