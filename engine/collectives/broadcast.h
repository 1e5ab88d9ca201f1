// SPDX-License-Identifier: Apache-2.0
// Broadcast inside one group: the root shows chunk after chunk, everybody else copies them out.
#pragma once

#include "collectives/machine.h"

namespace hvd {

// Posts a stretch of `from` for all others; towards sockets what lies in one tensor is sent from there.
void PostRange(const Flat& from, size_t begin, size_t length, Lane* lane);

class Broadcast : public Machine {
 public:
  // `brisk`: members answer at once, so that more and smaller chunks pay off. The same on all of them.
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
