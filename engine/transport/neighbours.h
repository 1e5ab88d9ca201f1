// SPDX-License-Identifier: Apache-2.0
// The ranks of this host with whom memory was really exchanged. They meet on abstract unix sockets (nothing to leave
// behind), prove the secret to each other, hand over arena and bell, and keep the connection as a life line: when a
// process dies, however it dies, the kernel closes it.
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

// The first pages of every arena.
struct ArenaHead {
  static constexpr uint64_t kMagic = 0x31646f766f726f68;  // "horovod1"
  uint64_t magic;
  uint32_t rank;
  uint32_t generation;
  int64_t world_region;  // offset of the lanes of the global process set, -1 if there was no room
  // Settled before the owner reports anything. Peers may write into outputs from this size on; UINT64_MAX if the owner
  // does not want that, or does not reach all memory of the host.
  std::atomic<uint64_t> single_copy_bytes;
  std::atomic<uint32_t> brisk;  // it reaches all memory of the host and has a core of its own: it answers at once
  alignas(64) std::atomic<uint32_t> asleep;
  alignas(64) std::atomic<uint64_t> pulse;  // goes up about once a second while the owner's engine is alive
  Inbox inbox;
};

class Neighbours {
 public:
  // Opens the listening socket under a random name. `host`: what errors call the host of all these ranks.
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
    const Arena* arena;    // null: only life lines are tied
    Poller* poller;        // whose bell peers get
    Connector* connector;  // carries the life line where unix sockets do not reach (another network namespace)
    std::chrono::steady_clock::time_point deadline;
    std::chrono::milliseconds silence;  // a rank that says nothing for so long is lost; zero: only the deadline counts
  };
  // Meets every rank in `others`, which do the same, all at once: one that is late, frozen or dead holds nobody else
  // up. Blocks until all have met or one is lost, which the status names; those that are here have met the others then.
  Status Meet(const std::vector<Invitation>& others, const Offer& offer);

  std::vector<Neighbour>& all() { return neighbours_; }
  Neighbour* Find(int rank);
  // Wakes those who sleep in the middle of something that our data move on.
  void RingHungry();
  void CloseDescriptors();

 private:
  using Clock = std::chrono::steady_clock;
  struct Arriving {  // nobody knows who it is before its handshake is over
    Fd fd;
    Handshake handshake;
    Clock::time_point deadline;
  };
  struct Guest {  // a rank on its way to become a neighbour
    int rank;
    std::string name;
    bool by_tcp = false;
    Clock::time_point next_dial{};
    Fd fd;
    std::optional<Handshake> handshake;
    std::optional<HandOver> hand_over;
    std::string refused;  // why it will never come
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
  Heartbeats heartbeats_{{}};  // of the guests
  std::vector<Neighbour> neighbours_;
};

}  // namespace hvd
