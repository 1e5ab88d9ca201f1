// SPDX-License-Identifier: Apache-2.0
// The ranks of this host with whom memory was really exchanged. They meet on abstract unix sockets (nothing to leave
// behind), prove the secret to each other, hand over arena and bell, and keep the connection as a life line: when a
// process dies, however it dies, the kernel closes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "transport/bell.h"
#include "transport/connector.h"
#include "transport/handshake.h"
#include "transport/inbox.h"
#include "transport/poller.h"

namespace hvd {

// The first pages of every arena.
struct ArenaHead {
  static constexpr uint64_t kMagic = 0x31646f766f726f68;  // "horovod1"
  uint64_t magic;
  uint32_t rank;
  uint32_t generation;
  int64_t world_region;  // offset of the lanes of the global process set, -1 if there was no room
  // Settled before the owner reports anything. Peers may write into outputs from this size on; UINT64_MAX if the owner
  // does not want it, or reaches not all memory of the host.
  std::atomic<uint64_t> single_copy_bytes;
  std::atomic<uint32_t> brisk;  // it reaches all memory of the host and has a core of its own: it answers at once
  alignas(64) std::atomic<uint32_t> asleep;
  alignas(64) std::atomic<uint64_t> pulse;  // goes up about once a second while the owner's engine is alive
  Inbox inbox;
};

struct Neighbour {
  int rank = -1;
  int life_line = -1;
  std::unique_ptr<Arena> arena;  // null: no memory is shared with it, only the life line
  Bell bell;

  ArenaHead* head() const { return reinterpret_cast<ArenaHead*>(arena->at(0)); }
};

class Neighbours {
 public:
  // Opens the listening socket under a random name.
  explicit Neighbours(const ConnectorIdentity& me);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  const std::string& name() const { return name_; }

  struct Invitation {
    int rank;
    std::string name;
  };
  struct Offer {
    const Arena* arena;    // null: only life lines are tied
    const Poller* poller;  // whose bell peers get
    Connector* connector;  // carries the life line where unix sockets do not reach (another network namespace)
    std::chrono::steady_clock::time_point deadline;
  };
  // Meets every rank in `others`, which do the same. Blocks until the deadline at most.
  Status Meet(const std::vector<Invitation>& others, const Offer& offer);

  std::vector<Neighbour>& all() { return neighbours_; }
  Neighbour* Find(int rank);
  void CloseDescriptors();

 private:
  Status DialOne(const Invitation& other, const Offer& offer);
  struct Arriving {
    int fd;
    Handshake handshake;
    std::chrono::steady_clock::time_point deadline;
  };
  Status AcceptOne(const Offer& offer);
  std::list<Arriving>::iterator DropArriving(std::list<Arriving>::iterator arriving);
  Status DialByTcp(int rank, const Offer& offer);
  bool AcceptByTcp(const Offer& offer);
  Status Exchange(int fd, int rank, const Offer& offer);

  ConnectorIdentity me_;
  std::string name_;
  int listener_ = -1;
  std::list<Arriving> arriving_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace hvd
