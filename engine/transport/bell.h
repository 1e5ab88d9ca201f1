// SPDX-License-Identifier: Apache-2.0
// How a rank is woken: a flag in its arena says whether and how it sleeps, an eventfd that its local peers hold wakes
// it. Ringing an awake peer costs one load. A peer with nothing under way sleeps soundly: only messages wake it.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace hvd {

struct Bell {
  enum : uint32_t { kAwake = 0, kIdle = 1, kHungry = 2 };
  std::atomic<uint32_t>* asleep = nullptr;
  int fd = -1;

  // The caller has made its change visible and passed a seq_cst fence, so that either we see the flag or the sleeper,
  // which sets the flag before its last look, sees the change.
  void Ring() const {
    if (asleep->load(std::memory_order_relaxed) == kAwake) return;
    if (asleep->exchange(kAwake, std::memory_order_relaxed) != kAwake) Force();
  }
  // For data: only a rank in the middle of a collective cares.
  void RingIfHungry() const {
    if (asleep->load(std::memory_order_relaxed) == kHungry) Ring();
  }
  void Force() const {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(fd, &one, sizeof one);  // full means it is ringing already
  }
  void Silence() const {
    uint64_t count;
    [[maybe_unused]] ssize_t got = read(fd, &count, sizeof count);
  }
};

}  // namespace hvd
