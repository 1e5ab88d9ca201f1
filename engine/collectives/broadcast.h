// SPDX-License-Identifier: Apache-2.0
// Broadcast inside one group: the root posts chunk after chunk, and the other members copy them.
#pragma once

#include "collectives/machine.h"

namespace hvd {

// Post a stretch of `from` for all others. Without shared memory, data that lies in one tensor is sent directly from
// there.
void PostRange(const Flat& from, size_t begin, size_t length, Lane* lane);

class Broadcast : public Machine {
 public:
  // If `brisk`, which must be equal on all members, all members respond at once, so that more and smaller chunks are
  // faster.
  Broadcast(Lane* lane, int root, Flat in, Flat out, bool brisk);
  Step Advance() override;

 private:
  size_t ChunkLength(uint64_t chunk) const;
  bool ShowNext();
  bool CopyNext();

  Lane* lane_;
  bool is_root_;
  int root_;
  Flat in_, out_;
  size_t chunk_bytes_;
  uint64_t chunks_, done_ = 0;
  bool begun_ = false;
};

}  // namespace hvd
