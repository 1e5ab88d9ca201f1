// SPDX-License-Identifier: Apache-2.0
// Set of descriptors on which the driver sleeps: an epoll with this rank's wake-up eventfd, its sockets and its
// liveness sockets.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "transport/bell.h"

namespace hvd {

class Poller {
 public:
  using Clock = std::chrono::steady_clock;

  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  bool ok() const { return epoll_ >= 0 && bell_.fd >= 0; }
  int fd() const { return epoll_; }
  const Bell& bell() const { return bell_; }
  void set_asleep_flag(std::atomic<uint32_t>* flag) { bell_.asleep = flag; }

  // Watch `fd`, edge triggered: after an event, its owner must read and write until EAGAIN.
  void Add(int fd);
  void Remove(int fd);

  // Sleep until an event occurs or `until` is reached. To learn which event, call Collect while holding the driver's
  // token.
  void Sleep(Clock::time_point until) const;
  // Sleep for `time` unless the wake-up eventfd is signalled; ignore all other events. Return true if it was signalled.
  bool Nap(Clock::duration time) const;
  // Return the descriptors that have events, and reset the wake-up eventfd.
  const std::vector<int>& Collect();
  void CloseDescriptors();

 private:
  int epoll_ = -1;
  Bell bell_;
  std::atomic<uint32_t> private_flag_{0};
  std::vector<int> ready_;
};

}  // namespace hvd
