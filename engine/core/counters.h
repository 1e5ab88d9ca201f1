// SPDX-License-Identifier: Apache-2.0
// Numbers of events so far.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hvd {

// Every counter with its key in the engine's description.
#define HVD_COUNTERS(COUNTER)                         \
  COUNTER(direct_batches, "direct_batches")           \
  COUNTER(express_runs, "express_runs")               \
  COUNTER(single_copy_batches, "single_copy_batches") \
  COUNTER(foreign_batches, "mpi_batches")             \
  COUNTER(device_batches, "gpu_batches")              \
  COUNTER(prompt_batches, "prompt_batches")

// Owns the counters. The driving thread writes them; any thread may read them.
struct Counters {
#define HVD_COUNTER(name, key) std::atomic<uint64_t> name{0};
  HVD_COUNTERS(HVD_COUNTER)
#undef HVD_COUNTER
  std::atomic<uint64_t> pings{0};  // control messages that only show that this rank is alive; not in the description

  // Return the members of a JSON object, each with ", " before it.
  std::string ToJson() const {
    std::string json;
#define HVD_COUNTER(name, key) json += ", \"" key "\": " + std::to_string(name.load(std::memory_order_relaxed));
    HVD_COUNTERS(HVD_COUNTER)
#undef HVD_COUNTER
    return json;
  }
};

}  // namespace hvd
