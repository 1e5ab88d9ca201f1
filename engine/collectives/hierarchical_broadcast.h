// SPDX-License-Identifier: Apache-2.0
// Broadcast over hosts. The root posts chunk after chunk inside its host, the forwarding ranks there send them to the
// other hosts in turn, and the rank that receives a chunk posts it inside its host. Each host receives a byte once
// instead of once per rank.
#pragma once

#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalBroadcast : public Machine {
 public:
  // `root` is the index of the root in the group.
  HierarchicalBroadcast(const HostGrid& grid, int root, Flat in, Flat out);
  Step Advance() override;

 private:
  Range Chunk(uint64_t chunk) const;
  int CarrierOf(uint64_t chunk) const { return static_cast<int>((first_carrier_ + chunk) % columns_); }
  // Return the position of the rank that posts the chunk inside this host.
  int ShowerOf(uint64_t chunk) const { return at_root_ ? root_ : CarrierOf(chunk); }
  uint64_t NextOfOurs(uint64_t chunk) const;  // first chunk from `chunk` on that this rank forwards
  void Begin();
  bool Show();
  bool Take();
  bool Carry();

  HostGrid grid_;
  Flat in_, out_;
  int root_host_ = 0, root_ = 0;  // host of the root, and its position there
  bool at_root_, is_root_;
  uint64_t first_carrier_, columns_;
  size_t chunk_bytes_;
  uint64_t chunks_;
  uint64_t shown_ = 0, taken_ = 0;  // number of chunks that this rank has posted, and received, inside the host
  uint64_t carried_ = 0;            // the next chunk that this rank sends to, or receives from, another host
  bool begun_ = false;
};

}  // namespace hvd
