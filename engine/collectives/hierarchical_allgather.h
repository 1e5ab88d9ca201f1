// SPDX-License-Identifier: Apache-2.0
// Allgather over hosts, for contributions of different sizes and for fused tensors. Members exchange their
// contributions inside the host, each forwarding rank sends its column's share to its counterparts, and it distributes
// inside its host what it receives from them. Each host receives a byte once instead of once per rank. The three stages
// are allgathers; a later one forwards chunks as they arrive from an earlier one.
#pragma once

#include <memory>
#include <vector>

#include "collectives/allgather.h"
#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalAllgather : public Machine {
 public:
  // outs[j] is the destination of member j's contribution, and outs[j].size() its length.
  HierarchicalAllgather(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs);
  Step Advance() override;

 private:
  using Streams = std::vector<Flat>;  // by host: the data of one column, at its destination in this process
  static Streams StreamsOf(const HostGrid& grid, int column, const std::vector<Flat>& outs);
  void MakeAcross(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs);
  void MakeShowing(const HostGrid& grid, const std::vector<Flat>& outs);
  size_t Arrived() const;

  size_t chunk_bytes_;
  size_t own_bytes_;  // size of the part that can be sent at once; the rest must first arrive from members of this host
  std::vector<size_t> foreign_bytes_;                     // size of the data from each other host
  std::unique_ptr<Allgather> inside_, across_, showing_;  // across_ exists on forwarding ranks only
};

}  // namespace hvd
