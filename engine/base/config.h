// SPDX-License-Identifier: Apache-2.0
// Who this rank is and how its engine is set up; filled from the C structs, constant afterwards.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

struct Identity {
  int rank = 0, size = 1;
  std::string host;
  std::string listen_address = "127.0.0.1";
  std::string world_id;
  uint32_t generation = 0;
  std::string secret;
};

// Values that the user chose; the autotuner leaves them alone.
enum AutotuneFixed : uint32_t { kFixedFusion = 1, kFixedCycle = 2, kFixedChunk = 4 };

struct Settings {
  size_t fusion_threshold = size_t{128} << 20;
  uint64_t cycle_time_us = 1000;
  size_t cache_capacity = size_t{1} << 16;  // a bound: the cache has as many entries as there are tensors
  size_t slot_bytes = size_t{256} << 10;
  int slots = 4;
  size_t small_bytes = size_t{32} << 10;
  size_t express_bytes = size_t{4} << 10;
  size_t single_copy_bytes = size_t{16} << 10;  // 0: never
  int tcp_streams = 1;
  uint64_t spin_us = 100;
  bool shared_memory = true;
  int hierarchical_allreduce = -1;
  bool deterministic = false;
  bool disable_group_fusion = false;
  uint64_t peer_timeout_ms = 10000;
  uint64_t stall_warning_ms = 60000;
  uint64_t stall_shutdown_ms = 0;
  bool autotune = false;
  uint32_t autotune_fixed = 0;  // AutotuneFixed
  int autotune_warmup_samples = 3;
  int autotune_steps_per_sample = 10;
  int autotune_max_samples = 20;
  double autotune_noise = 0.8;
  std::string autotune_log;  // the leader's; empty: none
};

struct Peer {
  int rank = -1;
  std::string host;
  std::string address;
  int port = 0;
  std::string local_socket;
};

}  // namespace hvd
