// SPDX-License-Identifier: Apache-2.0
// How the members of a group lie on hosts, and what one of them needs to reach the others by host: its lanes inside its
// host and, if it is a carrier, to its counterparts on the other hosts. The first members of each host are carriers, as
// many as the smallest host has; each stands in a column with its counterparts, and the bytes of the host's other
// members travel in the columns too, in turn.
#pragma once

#include <algorithm>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// From these sizes on (bytes of the whole batch) fewer bytes between hosts gain more than another hop costs. Nothing
// but the time taken depends on them: a choice that would change the order of a sum is never made by size.
constexpr size_t kHierarchicalAllgatherBytes = size_t{256} << 10;  // what everybody has at the end
constexpr size_t kHierarchicalBroadcastBytes = size_t{256} << 10;
constexpr size_t kJoinedAlltoallBytes = size_t{8} << 10;  // up to this size: one member's message to one host

struct HostGrid {
  std::vector<std::vector<int>> members;  // by host, in their order in the group
  int host = 0, position = 0;             // where we stand: members[host][position] is our index in the group
  int columns = 1;                        // carriers on each host
  Exchange* inside = nullptr;
  Exchange* across = nullptr;  // null unless we are a carrier; its members are numbered by host

  int hosts() const { return static_cast<int>(members.size()); }
  int ColumnOf(int place) const { return place % columns; }
  bool IsCarrier() const { return across != nullptr; }
  size_t MostOnOneHost() const {
    size_t most = 0;
    for (const auto& host_members : members) most = std::max(most, host_members.size());
    return most;
  }
  bool Even() const { return MostOnOneHost() == static_cast<size_t>(columns); }
  // The members of one host whose bytes travel in one column, its carrier first.
  std::vector<int> InColumn(int of_host, int column) const {
    std::vector<int> found;
    const std::vector<int>& all = members[static_cast<size_t>(of_host)];
    for (size_t i = static_cast<size_t>(column); i < all.size(); i += static_cast<size_t>(columns)) {
      found.push_back(all[i]);
    }
    return found;
  }
};

// What a chunk between hosts certainly has room for, by what one inside a host has: whoever is not a carrier has no
// lane across to ask, and all members must come to the same answer.
inline size_t RoomAcross(size_t inside_bytes) {
  return std::min(InPackets(inside_bytes), InPackets(2 * inside_bytes));  // slots across may be twice as large
}

// Chunks of a message of `bytes`: so many that the hops overlap, each no larger than `most`.
inline size_t OverlappingChunk(size_t bytes, size_t most) {
  constexpr size_t kWanted = 4, kLeast = size_t{128} << 10, kUnit = 4096;
  return std::min(most, std::max(kLeast, (bytes / kWanted + kUnit - 1) / kUnit * kUnit));
}

}  // namespace hvd
