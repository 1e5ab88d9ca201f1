// SPDX-License-Identifier: Apache-2.0
// Allreduce over hosts with several ranks each. Chunks are reduced inside each host through shared memory; the owner of
// each piece combines it with its counterparts on the other hosts (the ranks negotiate the algorithm, see
// between_hosts.h); then the owner distributes the result inside its host. Each host sends a byte once instead of once
// per rank. Requires equal numbers of members on all hosts.
#pragma once

#include <vector>

#include "collectives/between_hosts.h"

namespace hvd {

class HierarchicalAllreduce : public Machine {
 public:
  // `inside` connects the members of this host, `across` the members with this rank's local index on all hosts.
  HierarchicalAllreduce(Exchange* inside, Exchange* across, HostAlgorithm algorithm, Flat in, Flat out,
                        const Reduction& reduction);
  Step Advance() override;

 private:
  Range Piece(uint64_t chunk, int member) const;  // range in the batch, by member of this host
  // Return the offset of a chunk's piece in `partials_`, which holds pieces between the reduction inside the host and
  // the distribution of the result.
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
