// SPDX-License-Identifier: Apache-2.0
// Allgather inside one group, ragged and fused: each member's contribution is one run of bytes with a place of its own
// in everybody's outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Allgather : public Machine {
 public:
  // outs[j]: where member j's contribution goes here; outs[j].size() is its length. Our own may be empty: what we show
  // then has its place already. Chunks are as large as slots unless told otherwise, alike on all members.
  Allgather(Lane* lane, Flat in, std::vector<Flat> outs, size_t chunk_bytes = SIZE_MAX);
  Step Advance() override;

  // For what is passed on while it still arrives: only the first `bytes` of our contribution may be shown yet.
  void set_ready(size_t bytes) { ready_ = bytes; }
  // How much has come from each member that had so much.
  size_t collected_bytes() const { return collected_ * chunk_bytes_; }

 private:
  size_t BytesOf(int member) const { return member == lane_->me() ? in_.size() : outs_[member].size(); }
  size_t ChunkLength(int member, uint64_t chunk) const;
  void Keep(const std::byte* chunk, size_t begin, size_t length);
  bool Show();
  bool Collect();

  Lane* lane_;
  Flat in_;
  std::vector<Flat> outs_;
  size_t chunk_bytes_;
  size_t ready_ = SIZE_MAX;
  Collector collector_;
  uint64_t rounds_ = 0, shown_ = 0, collected_ = 0;
};

}  // namespace hvd
