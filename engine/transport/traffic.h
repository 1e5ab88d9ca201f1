// SPDX-License-Identifier: Apache-2.0
// Byte counters of one world on one rank: bytes through its sockets, and bytes that its collective state machines moved
// through memory shared by the ranks of a host. A counter never decreases.
//
// Data are tensor bytes, including the few bytes of sizes and offsets that a collective sends with them. Control is
// everything else on TCP sockets: control messages, the headers of all frames, and completed handshakes. TCP and IP
// headers are not counted, nor are unix sockets and liveness sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hvd {

// Sum that one thread at a time increments and any thread may read. Only the thread that holds the driver's token adds,
// so a load, an addition and a store suffice, without a locked instruction.
class Tally {
 public:
  void Add(uint64_t bytes) { sum_.store(sum() + bytes, std::memory_order_relaxed); }
  uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> sum_{0};
};

struct TrafficSums {
  uint64_t data_sent = 0, data_received = 0;
  uint64_t control_sent = 0, control_received = 0;
  uint64_t memory_read = 0, memory_written = 0;
  // False if MPI or NCCL moved tensors too, because the engine does not see how many bytes they moved.
  bool data_is_known = true;
};

// Counters that the driver writes. They have their own cache line, to avoid false sharing.
struct alignas(64) Traffic {
  Tally data_sent, data_received;
  Tally control_sent, control_received;
  Tally memory_read;     // bytes that this rank read from memory of other ranks
  Tally memory_written;  // bytes that this rank wrote directly into tensors of other ranks
  std::atomic<bool> data_is_known{true};

  TrafficSums Load() const {
    return {data_sent.sum(),
            data_received.sum(),
            control_sent.sum(),
            control_received.sum(),
            memory_read.sum(),
            memory_written.sum(),
            data_is_known.load(std::memory_order_relaxed)};
  }
};

// Return a JSON object with the keys of hvd.counters(). Data counters are null if unknown.
inline std::string ToJson(const TrafficSums& sums) {
  const auto data = [&](uint64_t bytes) { return sums.data_is_known ? std::to_string(bytes) : std::string("null"); };
  return "{\"data_bytes_sent\": " + data(sums.data_sent) + ", \"data_bytes_received\": " + data(sums.data_received) +
         ", \"control_bytes_sent\": " + std::to_string(sums.control_sent) +
         ", \"control_bytes_received\": " + std::to_string(sums.control_received) +
         ", \"shared_memory_bytes_read\": " + std::to_string(sums.memory_read) +
         ", \"shared_memory_bytes_written\": " + std::to_string(sums.memory_written) + "}";
}

}  // namespace hvd
