// SPDX-License-Identifier: Apache-2.0
// What the driver sleeps on: an epoll set with this rank's bell, its sockets and its neighbours' life lines.
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

  // Edge triggered: whoever owns the descriptor reads and writes until EAGAIN.
  void Add(int fd);
  void Remove(int fd);

  // Sleeps until something happens or `until`. Says nothing about what it was; call Collect under the driver's token.
  void Sleep(Clock::time_point until) const;
  // Sleeps whatever happens, but for the bell; true if that rang.
  bool Nap(Clock::duration time) const;
  // Descriptors with news. Silences the bell.
  const std::vector<int>& Collect();
  void CloseDescriptors();

 private:
  int epoll_ = -1;
  Bell bell_;
  std::atomic<uint32_t> private_flag_{0};
  std::vector<int> ready_;
};

}  // namespace hvd
