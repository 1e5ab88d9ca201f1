// SPDX-License-Identifier: Apache-2.0
// Layout of a group's members on hosts, and the lanes by which one member reaches the others. The first members of each
// host are forwarding ranks, as many as the smallest host has members. A forwarding rank and its counterparts on the
// other hosts form a column. The bytes of a host's other members are assigned to its columns in turn.
#pragma once

#include <algorithm>
#include <vector>

#include "collectives/machine.h"

namespace hvd {

// Batch sizes from which fewer bytes between hosts save more time than the additional hop costs. They affect only the
// time taken: a choice that would change the order of a sum never depends on the size.
constexpr size_t kHierarchicalAllgatherBytes = size_t{256} << 10;  // in bytes of the complete result
constexpr size_t kHierarchicalBroadcastBytes = size_t{256} << 10;
// in bytes of one member's message to one host, an upper limit
constexpr size_t kJoinedAlltoallBytes = size_t{8} << 10;

struct HostGrid {
  std::vector<std::vector<int>> members;  // members by host, in the order of the group
  int host = 0, position = 0;             // position of this member: members[host][position] is its index in the group
  int columns = 1;                        // forwarding ranks on each host
  Exchange* inside = nullptr;
  Exchange* across = nullptr;  // null unless this member is a forwarding rank; its members are numbered by host

  int hosts() const { return static_cast<int>(members.size()); }
  int ColumnOf(int place) const { return place % columns; }
  bool IsCarrier() const { return across != nullptr; }
  size_t MostOnOneHost() const {
    size_t most = 0;
    for (const auto& host_members : members) most = std::max(most, host_members.size());
    return most;
  }
  bool Even() const { return MostOnOneHost() == static_cast<size_t>(columns); }
  // Return the members of a host whose bytes travel in a column, its forwarding rank first.
  std::vector<int> InColumn(int of_host, int column) const {
    std::vector<int> found;
    const std::vector<int>& all = members[static_cast<size_t>(of_host)];
    for (size_t i = static_cast<size_t>(column); i < all.size(); i += static_cast<size_t>(columns)) {
      found.push_back(all[i]);
    }
    return found;
  }
};

// Return a chunk size between hosts that certainly fits, given the slot size inside a host. Members that are not
// forwarding ranks have no lane between hosts to query, but the result must be equal on all members.
inline size_t RoomAcross(size_t inside_bytes) {
  // slots between hosts may be twice as large as inside
  return std::min(InPackets(inside_bytes), InPackets(2 * inside_bytes));
}

// Return a chunk size, at most `most`, that divides a message of `bytes` into enough chunks for the hops to overlap.
inline size_t OverlappingChunk(size_t bytes, size_t most) {
  constexpr size_t kWanted = 4, kLeast = size_t{128} << 10, kUnit = 4096;
  return std::min(most, std::max(kLeast, (bytes / kWanted + kUnit - 1) / kUnit * kUnit));
}

}  // namespace hvd
