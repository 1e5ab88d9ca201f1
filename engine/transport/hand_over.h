// SPDX-License-Identifier: Apache-2.0
// Exchange of shared memory and wake-up descriptors between two ranks of one host, as a state machine that never
// blocks. It runs after the handshake; its result is a local peer, with or without shared memory.
#pragma once

#include <memory>

#include "memory/arena.h"
#include "transport/bell.h"
#include "transport/life_line.h"

namespace hvd {

struct ArenaHead;

struct Neighbour {
  int rank = -1;
  LifeLine life_line;
  // memory shared with this peer; null if only the liveness socket connects the two ranks
  std::unique_ptr<Arena> arena;
  Bell bell;

  ArenaHead* head() const { return reinterpret_cast<ArenaHead*>(arena->at(0)); }
};

class HandOver {
 public:
  enum class Outcome { kInProgress, kDone, kBroken };

  // `fd` becomes the liveness socket to the peer. `mine` is null if this rank shares no memory.
  HandOver(Fd fd, int rank, const Arena* mine, int bell, uint32_t generation);
  ~HandOver();
  HandOver(HandOver&&) = default;
  HandOver& operator=(HandOver&&) = default;

  int fd() const { return fd_.get(); }
  // Make all progress that is possible now. Call again when `fd` becomes readable.
  Outcome Step();
  Neighbour Take();  // returns the local peer; valid after kDone

 private:
  enum class Stage { kOffer, kAwaitOffer, kAwaitVerdict, kDone, kBroken };

  void Tell(char tag, const int* descriptors, int count, Stage next);
  bool Receive(char* tag);
  bool Sees() const;

  Fd fd_;
  int rank_;
  const Arena* mine_;
  int bell_;
  uint32_t generation_;
  Stage stage_ = Stage::kOffer;
  Fd received_[2];  // descriptors received from the peer: its arena and its wake-up eventfd
  std::unique_ptr<Arena> arena_;
  bool seen_ = false, shared_ = false;
};

}  // namespace hvd
