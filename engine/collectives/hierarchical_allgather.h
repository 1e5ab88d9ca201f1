// SPDX-License-Identifier: Apache-2.0
// Allgather over hosts, ragged and fused: members show each other what they bring, each carrier sends its column's
// share to its counterparts and shows what it got from them inside. Each host receives a byte once instead of once for
// every rank. Three allgathers in a row, the later ones fed by the earlier as chunks arrive.
#pragma once

#include <memory>
#include <vector>

#include "collectives/allgather.h"
#include "collectives/host_grid.h"

namespace hvd {

class HierarchicalAllgather : public Machine {
 public:
  // outs[j]: where member j's contribution goes here; outs[j].size() is its length.
  HierarchicalAllgather(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs);
  Step Advance() override;

 private:
  using Streams = std::vector<Flat>;  // by host: what travels in one column, where it lies here
  static Streams StreamsOf(const HostGrid& grid, int column, const std::vector<Flat>& outs);
  void MakeAcross(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs);
  void MakeShowing(const HostGrid& grid, const std::vector<Flat>& outs);
  size_t Arrived() const;

  size_t chunk_bytes_;
  size_t own_bytes_;                   // the first part of what we send across; the rest must come from members first
  std::vector<size_t> foreign_bytes_;  // what each other host sends us
  std::unique_ptr<Allgather> inside_, across_, showing_;  // across: carriers only
};

}  // namespace hvd
