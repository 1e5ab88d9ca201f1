// SPDX-License-Identifier: Apache-2.0
// Two ranks of one host, who have proved the secret to each other, hand over arena and bell, as a machine that never
// blocks. What comes of it is a neighbour, with or without memory.
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
  std::unique_ptr<Arena> arena;  // null: no memory is shared with it, only the life line
  Bell bell;

  ArenaHead* head() const { return reinterpret_cast<ArenaHead*>(arena->at(0)); }
};

class HandOver {
 public:
  enum class Outcome { kInProgress, kDone, kBroken };

  // `fd` becomes the neighbour's life line. `mine` is null where no memory is shared.
  HandOver(Fd fd, int rank, const Arena* mine, int bell, uint32_t generation);
  ~HandOver();
  HandOver(HandOver&&) = default;
  HandOver& operator=(HandOver&&) = default;

  int fd() const { return fd_.get(); }
  // Does what can be done now. Call again when `fd` becomes readable.
  Outcome Step();
  Neighbour Take();  // once kDone

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
  Fd received_[2];  // the other's arena and bell
  std::unique_ptr<Arena> arena_;
  bool seen_ = false, shared_ = false;
};

}  // namespace hvd
