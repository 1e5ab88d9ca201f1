// SPDX-License-Identifier: Apache-2.0
// Allreduce over hosts that hold several ranks each: chunks are reduced inside the host through shared memory, the
// owner of each piece combines it with its counterparts on the other hosts (by which algorithm is agreed upon, see
// between_hosts.h), and the result is shown inside the host.
// Each host sends a byte once instead of once for every rank. Needs the same number of members on every host.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class HierarchicalAllreduce : public Machine {
 public:
  // `inside`: the members of this host. `across`: the members with our local index on every host.
  HierarchicalAllreduce(Exchange* inside, Exchange* across, HostAlgorithm algorithm, Flat in, Flat out,
                        const Reduction& reduction);
  Step Advance() override;

 private:
  Range Piece(uint64_t chunk, int member) const;  // of the batch, by member inside
  // Where a chunk's piece is while it is ours: `partials_` holds those between the reduction and the result inside.
  size_t Place(uint64_t chunk) const { return chunk % in_flight_ * piece_bytes_; }
  std::byte* Partial(uint64_t chunk) { return partials_.data() + Place(chunk); }

  bool Publish();
  bool ReduceInside();
  bool ShowResult();
  bool CollectInside();

  Exchange* inside_;
  Flat in_, out_;
  Reduction local_;
  size_t piece_bytes_, chunk_bytes_;
  uint64_t chunks_, in_flight_;
  uint64_t published_ = 0, reduced_ = 0, shown_ = 0, collected_ = 0;
  std::vector<std::byte> partials_, scaled_;
  std::unique_ptr<BetweenHosts> across_;
  std::vector<const std::byte*> sources_;
  Outgoing outgoing_;
  Collector collector_;
};

}  // namespace hvd
