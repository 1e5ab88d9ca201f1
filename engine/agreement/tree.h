// SPDX-License-Identifier: Apache-2.0
// Path of control messages in a process set: every member sends to the first member of its host, and these form a tree
// under the set's leader (member 0), so that thousands of ranks need few connections each.
#pragma once

#include <algorithm>
#include <vector>

namespace hvd {

struct Tree {
  int parent = -1;  // member index; -1 at the leader
  std::vector<int> children;
};

// Return the tree of a small set: every member sends to the leader directly, so that its messages arrive in order.
inline Tree BuildStar(int members, int me) {
  Tree tree;
  if (me > 0) {
    tree.parent = 0;
  } else {
    for (int j = 1; j < members; ++j) tree.children.push_back(j);
  }
  return tree;
}

// Return the tree of a large set. `hosts[j]` is any number that identifies member j's host.
inline Tree BuildTree(const std::vector<int>& hosts, int me, int radix = 32) {
  std::vector<int> leaders;                      // first member of each host, in member order
  std::vector<int> host_position(hosts.size());  // position of member j's host in `leaders`
  for (size_t j = 0; j < hosts.size(); ++j) {
    auto same = std::find_if(leaders.begin(), leaders.end(), [&](int leader) { return hosts[leader] == hosts[j]; });
    host_position[j] = static_cast<int>(same - leaders.begin());
    if (same == leaders.end()) leaders.push_back(static_cast<int>(j));
  }
  Tree tree;
  const int position = host_position[me];
  if (leaders[position] != me) {
    tree.parent = leaders[position];
    return tree;
  }
  if (position > 0) tree.parent = leaders[(position - 1) / radix];
  for (int j = me + 1; j < static_cast<int>(hosts.size()); ++j) {
    if (host_position[j] == position) tree.children.push_back(j);
  }
  for (int child = position * radix + 1; child <= (position + 1) * radix; ++child) {
    if (child < static_cast<int>(leaders.size())) tree.children.push_back(leaders[child]);
  }
  return tree;
}

}  // namespace hvd
