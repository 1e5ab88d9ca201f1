// SPDX-License-Identifier: Apache-2.0
// Signs of life of the other ranks: heartbeats in shared memory and on links, and liveness sockets that the kernel
// closes when a process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "agreement/departures.h"
#include "core/leaving.h"
#include "core/process_set.h"
#include "core/services.h"

namespace hvd {

// Owns the last heartbeat of each local peer, and which liveness sockets have data to read.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // All arguments must outlive this object. `departures` are those of `services`.
  PeerWatch(Departures* departures, const Surroundings* around, const Services* services)
      : departures_(*departures), around_(*around), services_(*services) {}

  // Accept the control connections that other ranks opened. If this rank has left, send them its leave notice.
  void AcceptLinks(const Leaving& leaving);
  // Exchange heartbeats. Return what to do about a rank that never connected and has gone.
  Departures::Verdict Look(Clock::time_point now);

  // Handle an event on descriptor `fd`.
  void OnEvent(int fd);
  bool has_spoken() const { return !spoke_.empty(); }
  // Read the liveness sockets that had data since the last call. Return their ranks in the order of the events.
  std::vector<Neighbour*> ReadSpoken();

 private:
  Departures& departures_;
  const Surroundings& around_;
  const Services& services_;
  std::vector<Neighbour*> spoke_;
  std::map<int, uint64_t> pulses_;  // last heartbeat counter of each local peer
};

}  // namespace hvd
