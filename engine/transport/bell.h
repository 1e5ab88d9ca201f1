// SPDX-License-Identifier: Apache-2.0
// Wake-up of a rank by its local peers: a flag in the rank's arena shows whether it sleeps, and writing to its eventfd
// wakes it. For a rank that is awake, this costs one load. An idle rank is woken only for messages; a rank that waits
// in a collective (kHungry) is also woken for data.
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

  // Wake the rank if it sleeps. The caller must have published its change and passed a seq_cst fence. Then either this
  // call sees the flag, or the rank sees the change, because a rank sets the flag before it checks for changes a last
  // time.
  void Ring() const {
    if (asleep->load(std::memory_order_relaxed) == kAwake) return;
    if (asleep->exchange(kAwake, std::memory_order_relaxed) != kAwake) Force();
  }
  // Wake the rank if it sleeps in a collective; use this for data, which an idle rank does not need.
  void RingIfHungry() const {
    if (asleep->load(std::memory_order_relaxed) == kHungry) Ring();
  }
  void Force() const {
    uint64_t one = 1;
    // A full counter means that a wake-up is pending already.
    [[maybe_unused]] ssize_t written = write(fd, &one, sizeof one);
  }
  void Silence() const {
    uint64_t count;
    [[maybe_unused]] ssize_t got = read(fd, &count, sizeof count);
  }
};

}  // namespace hvd
