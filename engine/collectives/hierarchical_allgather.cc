// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_allgather.h"

#include <algorithm>
#include <utility>

namespace hvd {

HierarchicalAllgather::HierarchicalAllgather(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs)
    : own_bytes_(in.size()) {
  size_t largest = 0;
  for (const Flat& out : outs) largest = std::max(largest, out.size());
  chunk_bytes_ = OverlappingChunk(largest, RoomAcross(grid.inside->there->slot_bytes()));
  std::vector<Flat> neighbours;
  for (int member : grid.members[grid.host]) neighbours.push_back(outs[member]);
  inside_ = std::make_unique<Allgather>(grid.inside->there.get(), in, std::move(neighbours), chunk_bytes_);
  if (grid.IsCarrier()) MakeAcross(grid, in, outs);
  MakeShowing(grid, outs);
}

HierarchicalAllgather::Streams HierarchicalAllgather::StreamsOf(const HostGrid& grid, int column,
                                                                const std::vector<Flat>& outs) {
  Streams streams(grid.members.size());
  for (int host = 0; host < grid.hosts(); ++host) {
    for (int member : grid.InColumn(host, column)) streams[host].Append(outs[member], 0, outs[member].size());
  }
  return streams;
}

void HierarchicalAllgather::MakeAcross(const HostGrid& grid, const Flat& in, const std::vector<Flat>& outs) {
  Streams streams = StreamsOf(grid, grid.position, outs);
  const Flat carried = std::exchange(streams[grid.host], Flat());  // this host's data, which is in place already
  Flat sent = in;  // data that may be sent without waiting for the stage inside the host
  sent.Append(carried, in.size(), carried.size() - in.size());
  for (int host = 0; host < grid.hosts(); ++host) {
    if (host != grid.host) foreign_bytes_.push_back(streams[host].size());
  }
  across_ = std::make_unique<Allgather>(grid.across->there.get(), std::move(sent), std::move(streams), chunk_bytes_);
}

// Prepare the stage that distributes data from other hosts in the order of its arrival: one chunk from each host, then
// the next chunk from each.
void HierarchicalAllgather::MakeShowing(const HostGrid& grid, const std::vector<Flat>& outs) {
  std::vector<Flat> shown(grid.members[grid.host].size());
  for (int column = 0; column < grid.columns; ++column) {
    const Streams streams = StreamsOf(grid, column, outs);
    bool more = true;
    for (size_t begin = 0; more; begin += chunk_bytes_) {
      more = false;
      for (int host = 0; host < grid.hosts(); ++host) {
        const size_t size = streams[host].size();
        if (host == grid.host || begin >= size) continue;
        shown[column].Append(streams[host], begin, std::min(chunk_bytes_, size - begin));
        more = true;
      }
    }
  }
  Flat own = std::exchange(shown[grid.position], Flat());
  showing_ = std::make_unique<Allgather>(grid.inside->back.get(), std::move(own), std::move(shown), chunk_bytes_);
}

size_t HierarchicalAllgather::Arrived() const {
  size_t bytes = 0;
  for (size_t size : foreign_bytes_) bytes += std::min(size, across_->collected_bytes());
  return bytes;
}

Machine::Step HierarchicalAllgather::Advance() {
  bool moved = false, done = true;
  auto advance = [&](Allgather& stage) {
    const Step step = stage.Advance();
    moved |= step == Step::kMoved;
    done &= step == Step::kDone;
    return step;
  };
  const Step inside = advance(*inside_);
  if (across_) {
    across_->set_ready(inside == Step::kDone ? SIZE_MAX : own_bytes_);
    advance(*across_);
    showing_->set_ready(Arrived());
  }
  advance(*showing_);
  return done ? Step::kDone : moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
