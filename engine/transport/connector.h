// SPDX-License-Identifier: Apache-2.0
// Authenticated TCP streams between ranks, made when first needed. The higher rank dials, the lower one accepts.
// Nothing blocks: every call does what can be done now. One thread at a time (the driver) uses it.
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

// Which conversation a stream carries.
struct StreamKey {
  int32_t peer = -1;     // global rank at the other end
  uint32_t channel = 0;  // 0: control. Others: one for each lane owner (process set, point-to-point)
  uint32_t epoch = 0;    // process set ids are reused; (channel, epoch) is not
  uint16_t lane = 0;
  uint16_t stream = 0;
  bool operator<(const StreamKey& other) const;
  bool operator==(const StreamKey& other) const;
};

struct ConnectorIdentity {
  int rank = 0;
  std::string world_id;  // up to 32 bytes
  uint32_t generation = 0;
  std::string secret;
};

// An established stream. `fd` is non-blocking, TCP_NODELAY, CLOEXEC, and owned by whoever took it.
// The two session keys (SipHash) are derived from the secret and both nonces; they authenticate control frames.
struct Stream {
  int fd = -1;
  uint64_t send_key[2] = {0, 0};
  uint64_t recv_key[2] = {0, 0};
};

// May be changed at any time; what has begun keeps the deadline it began with.
struct ConnectorLimits {
  std::chrono::milliseconds dial{30000};      // from the first Take of a key until it fails
  std::chrono::milliseconds unanswered{0};    // a dial fails earlier if the peer's host answers nothing (0: no limit)
  std::chrono::milliseconds handshake{5000};  // an accepted connection that is slower than this is dropped
  size_t handshakes = 256;                    // accepted connections not yet authenticated; others wait in the backlog
};

class Connector {
 public:
  // `add(fd)` is called for every descriptor that should wake the driver's epoll (edge triggered, both directions),
  // `remove(fd)` before it is closed. A descriptor that is taken stays watched; bytes may wait in it already: read.
  struct Watcher {
    std::function<void(int fd)> add;
    std::function<void(int fd)> remove;
  };
  // `address` is numeric ("127.0.0.1", "::1", "0.0.0.0"); the kernel chooses the port. Null with `status` on failure.
  static std::unique_ptr<Connector> Listen(const ConnectorIdentity& me, const std::string& address, Watcher watcher,
                                           Status* status);
  virtual ~Connector() = default;
  virtual int port() const = 0;
  // Where each rank listens. Must be set before the first Take.
  virtual void SetPeers(std::vector<std::pair<std::string, int>> address_and_port_by_rank) = 0;

  // The stream for `key` if it is established: ownership of the fd passes to the caller (still watched). Otherwise
  // fd == -1, and the first call for a key towards a lower rank starts to dial. A dial that was refused or timed out
  // is retried until `limits.dial` (from the first call), after which `status` says why, at every further call too.
  // After `limits.unanswered` a dial goes on only while the peer's kernel holds the connection and acknowledges data.
  // A peer that proves that it knows the secret but belongs elsewhere (generation, version) is not asked twice.
  virtual Stream Take(const StreamKey& key, Status* status) = 0;
  // Streams that peers have opened towards us for a key that nobody asked for yet, e.g. to learn that a peer wants a
  // control link. They stay until taken.
  virtual std::vector<StreamKey> Offered() const = 0;

  // Advances accepts, dials and handshakes; true if anything moved: call it again before sleeping then.
  virtual bool Progress() = 0;
  // How long the driver may sleep if no watched descriptor wakes it: retries and limits need a clock. max(): for ever.
  virtual std::chrono::milliseconds NextWakeup() const = 0;
  // Closes every descriptor held, for the forked child. Does not touch the watcher: the child's epoll is the parent's.
  virtual void CloseAll() = 0;
  // Whether nobody listens any more where this rank did when the ranks met: its process has ended, or it has left. For
  // ranks that are waited for; call it now and then, for it takes two refusals.
  virtual bool Deserted(int rank) = 0;
  virtual uint64_t refused() const = 0;  // connections that failed authentication or spoke garbage

  // Byte counters of this rank. Lanes, mailbox and handshakes count here and not in objects of their own, so the bytes
  // of a closed stream stay in the sums.
  Traffic traffic;
  // Streams that were taken so far; from any thread.
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

  ConnectorLimits limits;

 protected:
  std::atomic<uint64_t> taken_{0};
};

}  // namespace hvd
