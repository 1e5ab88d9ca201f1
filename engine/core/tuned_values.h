// SPDX-License-Identifier: Apache-2.0
// The tuning values in force.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "agreement/message.h"

namespace hvd {

// Owns the tuning values for later records of the global set's log. The driving thread writes them; any thread may read
// them.
class TunedValues {
 public:
  void Store(const Tuning& values) {
    fusion_threshold_.store(values.fusion_threshold, kRelaxed);
    cycle_time_us_.store(values.cycle_time_us, kRelaxed);
    chunk_bytes_.store(values.chunk_bytes, kRelaxed);
    final_.store(values.final, kRelaxed);
  }
  Tuning Load() const {
    return {fusion_threshold_.load(kRelaxed), cycle_time_us_.load(kRelaxed), chunk_bytes_.load(kRelaxed), is_final()};
  }
  std::chrono::microseconds cycle_time() const { return std::chrono::microseconds(cycle_time_us_.load(kRelaxed)); }
  // True once the autotuner tries nothing more.
  bool is_final() const { return final_.load(kRelaxed); }

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  std::atomic<uint64_t> fusion_threshold_{0}, cycle_time_us_{0}, chunk_bytes_{0};
  std::atomic<bool> final_{false};
};

}  // namespace hvd
