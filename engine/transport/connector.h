// SPDX-License-Identifier: Apache-2.0
// Authenticated TCP streams between ranks, opened on first use. The higher rank dials and the lower rank accepts. No
// call blocks: each makes the progress that is possible now. Only one thread at a time, the driver, may use it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "transport/traffic.h"

namespace hvd {

// Purpose of a stream and the peer at its other end.
struct StreamKey {
  int32_t peer = -1;  // global rank at the other end of the stream
  // 0 for control messages; otherwise the owner of the lanes: a process set, or point-to-point transfers
  uint32_t channel = 0;
  uint32_t epoch = 0;  // epoch of the process set, because process sets may reuse the id `channel`
  uint16_t lane = 0;
  uint16_t stream = 0;
  bool operator<(const StreamKey& other) const;
  bool operator==(const StreamKey& other) const;
};

struct ConnectorIdentity {
  int rank = 0;
  std::string world_id;  // id of the world, up to 32 bytes
  uint32_t generation = 0;
  std::string secret;
};

// Established stream. `fd` is non-blocking, TCP_NODELAY and CLOEXEC, and belongs to the caller that took it. The two
// SipHash session keys are derived from the secret and both nonces; they authenticate control frames.
struct Stream {
  int fd = -1;
  uint64_t send_key[2] = {0, 0};
  uint64_t recv_key[2] = {0, 0};
};

// Limits, which may be changed at any time. A dial or handshake in progress keeps the deadline that it started with.
struct ConnectorLimits {
  std::chrono::milliseconds dial{30000};  // time limit for a dial, from the first Take of its key
  // Time after which a dial fails if the peer's host does not answer at all (0: no limit).
  std::chrono::milliseconds unanswered{0};
  // Time after which an accepted connection that is not authenticated is dropped.
  std::chrono::milliseconds handshake{5000};
  size_t handshakes = 256;  // maximum number of accepted connections that are not yet authenticated
};

class Connector {
 public:
  // Callbacks: `add(fd)` is called for each descriptor that should wake the driver's epoll (edge triggered, both
  // directions), `remove(fd)` before it is closed. A descriptor stays watched after Take. Read it at once, because
  // bytes may have arrived already.
  struct Watcher {
    std::function<void(int fd)> add;
    std::function<void(int fd)> remove;
  };
  // Listen on `address`, which is numeric ("127.0.0.1", "::1", "0.0.0.0"), at a port that the kernel chooses. On
  // failure return null and set `status`.
  static std::unique_ptr<Connector> Listen(const ConnectorIdentity& me, const std::string& address, Watcher watcher,
                                           Status* status);
  virtual ~Connector() = default;
  virtual int port() const = 0;
  // Set the address at which each rank listens. Call before the first Take.
  virtual void SetPeers(std::vector<std::pair<std::string, int>> address_and_port_by_rank) = 0;

  // Return the stream for `key` if it is established; the caller then owns its fd, which stays watched. Otherwise
  // return fd == -1; if the peer is a lower rank, the first call for the key starts to dial. A dial that is refused or
  // times out is retried until `limits.dial` after the first call; then this and every further call sets `status`.
  // After `limits.unanswered`, a dial continues only while the peer's kernel holds the connection and acknowledges
  // data. A peer that knows the secret but belongs to another world, generation, rank or version is not dialed again.
  virtual Stream Take(const StreamKey& key, Status* status) = 0;
  // Return the keys of streams that peers have opened and that this rank has not taken yet. For example, this shows
  // that a peer wants a control link.
  virtual std::vector<StreamKey> Offered() const = 0;

  // Advance accepts, dials and handshakes. Return true if any progressed; then call again before sleeping.
  virtual bool Progress() = 0;
  // Return how long the driver may sleep if no watched descriptor wakes it, because retries and limits depend on time.
  // max() means indefinitely.
  virtual std::chrono::milliseconds NextWakeup() const = 0;
  // Close all descriptors in a forked child. This does not call the watcher, because the child shares the parent's
  // epoll.
  virtual void CloseAll() = 0;
  // Return true if the port of `rank` refuses connections: its process has ended, or it has left. Call repeatedly while
  // waiting for the rank, because the answer takes two refusals.
  virtual bool Deserted(int rank) = 0;
  // returns the number of connections that failed authentication or sent invalid data
  virtual uint64_t refused() const = 0;

  // Byte counters of this rank. Lanes, the mailbox and handshakes count here, so that the bytes of a closed stream stay
  // in the sums.
  Traffic traffic;
  // Return the number of streams taken so far. Any thread may call this.
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

  ConnectorLimits limits;

 protected:
  std::atomic<uint64_t> taken_{0};
};

}  // namespace hvd
