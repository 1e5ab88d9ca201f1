// SPDX-License-Identifier: Apache-2.0
// Local peers: the ranks of this host that this rank is connected to, with shared memory where that works. They connect
// over abstract unix sockets, which leave no files behind, authenticate each other, and exchange the descriptors of
// arena and wake-up eventfd. The connection stays open as a liveness socket, because the kernel closes it however a
// process dies.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/heartbeats.h"
#include "transport/connector.h"
#include "transport/hand_over.h"
#include "transport/handshake.h"
#include "transport/inbox.h"
#include "transport/poller.h"

namespace hvd {

// First pages of every arena.
struct ArenaHead {
  static constexpr uint64_t kMagic = 0x31646f766f726f68;  // "horovod1"
  uint64_t magic;
  uint32_t rank;
  uint32_t generation;
  int64_t world_region;  // offset of the lanes of the global process set; -1 if there was no room
  // Smallest output into which peers may write directly, in bytes; UINT64_MAX if the owner does not allow it or cannot
  // access the memory of all local ranks. Set before the owner sends any report.
  std::atomic<uint64_t> single_copy_bytes;
  // Nonzero if the owner responds at once, because it can access the memory of all local ranks and has a dedicated
  // core.
  std::atomic<uint32_t> brisk;
  alignas(64) std::atomic<uint32_t> asleep;
  alignas(64) std::atomic<uint64_t> pulse;  // incremented about once a second while the owner's engine is alive
  Inbox inbox;
};

class Neighbours {
 public:
  // Listen on an abstract unix socket with a random name. `host` is the host name for errors.
  Neighbours(const ConnectorIdentity& me, std::string host);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  const std::string& name() const { return name_; }

  struct Invitation {
    int rank;
    std::string name;
  };
  struct Offer {
    const Arena* arena;    // this rank's memory; null: the ranks exchange no memory, only liveness sockets
    Poller* poller;        // poller whose wake-up eventfd is sent to the peers
    Connector* connector;  // carries the liveness socket where unix sockets do not reach (another network namespace)
    std::chrono::steady_clock::time_point deadline;
    std::chrono::milliseconds silence;  // time after which a silent rank is lost; zero: only the deadline counts
  };
  // Connect to all ranks in `others`, which call this too. The connections are made concurrently, so that a rank that
  // is late, frozen or dead delays no other. Block until all are connected, or until one is lost; the status names the
  // lost rank. After a loss, keep connecting to the other ranks for up to a second, so that they can be told.
  Status Meet(const std::vector<Invitation>& others, const Offer& offer);

  std::vector<Neighbour>& all() { return neighbours_; }
  Neighbour* Find(int rank);
  // Wake the peers that sleep in a collective, because this rank has moved data that they wait for.
  void RingHungry();
  void CloseDescriptors();

 private:
  using Clock = std::chrono::steady_clock;
  struct Arriving {  // accepted connection; its rank is unknown until the handshake ends
    Fd fd;
    Handshake handshake;
    Clock::time_point deadline;
  };
  struct Guest {  // rank that is not connected yet
    int rank;
    std::string name;
    bool by_tcp = false;
    Clock::time_point next_dial{};
    Fd fd;
    std::optional<Handshake> handshake;
    std::optional<HandOver> hand_over;
    std::string refused;  // reason for which the rank can never connect; empty if none
  };

  void AcceptAll(const Offer& offer);
  void Welcome(Arriving* arriving, const Offer& offer);
  void AcceptByTcp(const Offer& offer);
  bool Step(Guest* guest, const Offer& offer);
  bool Dial(Guest* guest, const Offer& offer);
  bool DialByTcp(Guest* guest, const Offer& offer);
  void GreetGuests(const Offer& offer);
  std::optional<LastWords> FindLoss(const Offer& offer);
  std::optional<LastWords> WhatNeighboursSay();
  LastWords Lost(int rank, const std::string& why) const;
  void Await(const Offer& offer) const;

  ConnectorIdentity me_;
  std::string host_;
  std::string name_;
  Fd listener_;
  std::list<Arriving> arriving_;
  std::list<Guest> guests_;
  Heartbeats heartbeats_{{}};  // heartbeats of the ranks in guests_
  std::vector<Neighbour> neighbours_;
};

}  // namespace hvd
