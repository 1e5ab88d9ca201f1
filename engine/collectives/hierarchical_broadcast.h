// SPDX-License-Identifier: Apache-2.0
// Broadcast over hosts: the root shows chunk after chunk inside its host, the carriers there send them to the other
// hosts in turn, and whoever receives one shows it inside. Each host receives a byte once instead of once for every
// rank.
#pragma once

#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalBroadcast : public Machine {
 public:
  // `root`: its index in the group.
  HierarchicalBroadcast(const HostGrid& grid, int root, Flat in, Flat out);
  Step Advance() override;

 private:
  Range Chunk(uint64_t chunk) const;
  int CarrierOf(uint64_t chunk) const { return static_cast<int>((first_carrier_ + chunk) % columns_); }
  int ShowerOf(uint64_t chunk) const { return at_root_ ? root_ : CarrierOf(chunk); }  // in this host
  uint64_t NextOfOurs(uint64_t chunk) const;  // the first from `chunk` on that we carry
  void Begin();
  bool Show();
  bool Take();
  bool Carry();

  HostGrid grid_;
  Flat in_, out_;
  int root_host_ = 0, root_ = 0;  // the host, and the position in it
  bool at_root_, is_root_;
  uint64_t first_carrier_, columns_;
  size_t chunk_bytes_;
  uint64_t chunks_;
  uint64_t shown_ = 0, taken_ = 0;  // chunks, inside
  uint64_t carried_ = 0;            // of those that we carry, the next one
  bool begun_ = false;
};

}  // namespace hvd
