// SPDX-License-Identifier: Apache-2.0
// Allreduce over hosts that hold several ranks each: chunks are reduced inside the host through shared memory, the
// owner of each piece combines it with its counterparts on the other hosts, and the result is shown inside the host.
// Each host sends a byte once instead of once for every rank. Needs the same number of members on every host.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class HierarchicalAllreduce : public Machine {
 public:
  // `inside`: the members of this host. `across`: the members with our local index on every host.
  HierarchicalAllreduce(Exchange* inside, Exchange* across, Flat in, Flat out, Reduction reduction);
  Step Advance() override;

 private:
  static constexpr uint64_t kInFlight = 4;  // chunks between the local reduction and the local result

  Range Piece(uint64_t chunk, int member) const;  // of the batch, by member inside
  Range Share(uint64_t chunk, int host) const;    // of our own piece, by member across
  std::byte* Partial(uint64_t chunk) { return partials_.data() + (chunk % kInFlight) * inside_->there->piece_bytes(); }

  bool Publish();
  bool ReduceInside();
  bool SendAcross();
  bool ReduceAcross();
  bool CollectAcross();
  bool ShowResult();
  bool CollectInside();

  Exchange* inside_;
  Exchange* across_;
  Flat in_, out_;
  Reduction local_, cross_;
  size_t chunk_bytes_;
  uint64_t chunks_;
  uint64_t published_ = 0, reduced_ = 0, sent_ = 0, combined_ = 0, gathered_ = 0, shown_ = 0, collected_ = 0;
  std::vector<std::byte> partials_, scaled_;
  std::vector<const std::byte*> sources_;
  Outgoing outgoing_;
  Collector collector_inside_, collector_across_;
};

}  // namespace hvd
