// SPDX-License-Identifier: Apache-2.0
// Allgather inside one group, ragged and fused: each member's contribution is one run of bytes with a place of its own
// in everybody's outputs.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Allgather : public Machine {
 public:
  // outs[j]: where member j's contribution goes here; outs[j].size() is its length.
  Allgather(Lane* lane, Flat in, std::vector<Flat> outs);
  Step Advance() override;

 private:
  uint64_t ChunksOf(int member) const;
  size_t ChunkLength(int member, uint64_t chunk) const;
  bool Show();
  bool Collect();

  Lane* lane_;
  Flat in_;
  std::vector<Flat> outs_;
  Collector collector_;
  uint64_t rounds_ = 0, shown_ = 0, collected_ = 0;
};

}  // namespace hvd
