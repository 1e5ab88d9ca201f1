// SPDX-License-Identifier: Apache-2.0
// How a rank is woken: a flag in its arena says that it sleeps, an eventfd that its local peers hold wakes it.
// Whoever changed something that a peer may wait for rings; ringing an awake peer costs one load.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace hvd {

struct Bell {
  std::atomic<uint32_t>* asleep = nullptr;
  int fd = -1;

  // The caller has made its change visible and passed a seq_cst fence, so that either we see the flag or the sleeper,
  // which sets the flag before its last look, sees the change.
  void Ring() const {
    if (asleep->load(std::memory_order_relaxed) == 0) return;
    if (asleep->exchange(0, std::memory_order_relaxed) != 0) Force();
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
