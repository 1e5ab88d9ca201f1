// SPDX-License-Identifier: Apache-2.0
// Allgather inside one group, for contributions of different sizes and for fused tensors. Each member's contribution is
// one run of bytes with a destination of its own in every member's outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

class Allgather : public Machine {
 public:
  // outs[j] is the destination of member j's contribution, and outs[j].size() its length. outs[me] may be empty if this
  // member's contribution is in place already. Chunks are as large as slots unless `chunk_bytes` is less; it must be
  // equal on all members.
  Allgather(Lane* lane, Flat in, std::vector<Flat> outs, size_t chunk_bytes = SIZE_MAX);
  Step Advance() override;

  // Allow only the first `bytes` of this member's contribution to be posted, because the rest is still arriving from
  // another stage.
  void set_ready(size_t bytes) { ready_ = bytes; }
  // Return how many bytes have arrived from each member, for members that contribute at least so many.
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
