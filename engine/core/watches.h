// SPDX-License-Identifier: Apache-2.0
// What is checked periodically, because nothing announces it: tensors that some ranks do not submit, ranks that wait
// for each other, and work on GPUs that does not finish.
#pragma once

#include <algorithm>
#include <chrono>
#include <string_view>

#include "core/deadlock_watch.h"
#include "core/gpu_watch.h"
#include "core/leaving.h"
#include "core/stall_watch.h"

namespace hvd {

// Owns these watches, and the time of their next look.
class Watches {
 public:
  using Clock = std::chrono::steady_clock;
  // What the watches need from the program and its devices.
  struct Sources {
    StackTeller stack_teller;  // describes this process
    StackTeller block_teller;  // describes one of its threads
    const Callers* callers;
    Devices* devices;
  };
  struct Findings {
    Departures::Verdict verdict;
    bool has_failed = false;  // operations have failed, and the sets' coordinators have something to decide
  };

  // All arguments must outlive this object.
  Watches(const Sources& sources, SetRegistry* sets, const Services* services)
      : sets_(*sets),
        departures_(*services->departures),
        stalls_(sources.stack_teller, sets, services),
        deadlocks_(sources.block_teller, sources.callers, sets, services),
        gpus_(sources.devices, sets, services) {}

  GpuWatch& gpus() { return gpus_; }
  // `first`: the first rank that left normally.
  Findings Look(Clock::time_point now, const Leaving::First& first);
  // When all of this is to be checked again, heartbeats included.
  Clock::time_point next_look() const { return next_look_; }
  void Schedule(Clock::time_point now) { next_look_ = std::min(departures_.NextLook(now), deadlocks_.NextLook(now)); }
  // Process a message from the watches of another rank. Return true if it has failed operations.
  bool OnMessage(Membership& membership, std::string_view whole, std::string_view body);
  // Note that a rank has left.
  void Forget(int rank) { deadlocks_.Forget(rank); }

  // True while the program has not answered a question yet.
  bool ask() const { return stalls_.asks() || deadlocks_.asks(); }
  void ReadAnswers() {
    if (stalls_.asks()) stalls_.ReadAnswer();
    if (deadlocks_.asks()) deadlocks_.ReadAnswer();
  }

 private:
  const SetRegistry& sets_;
  const Departures& departures_;
  StallWatch stalls_;
  DeadlockWatch deadlocks_;
  GpuWatch gpus_;
  Clock::time_point next_look_;
};

}  // namespace hvd
