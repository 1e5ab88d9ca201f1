// SPDX-License-Identifier: Apache-2.0
// Which algorithm a reduction uses between hosts. Asked by the leader alone, whose answer is in the record. It follows
// from where the hosts are and from the tensor's own size, never from what it is fused with or how long anything took:
// the same job gives the same bits. Pure.
#pragma once

#include <cstddef>

#include "agreement/message.h"

namespace hvd {

// Of the members of a set.
struct HostLayout {
  int hosts = 1;
  // Each host exchanges with one counterpart on every other: it has one member, or as many as all others and the
  // hierarchy is in use. Else members of one host lie among those of others, and only direct exchange knows how.
  bool even = false;
};

struct AlgorithmRules {
  bool deterministic = false;  // sums in the order of the ranks, always
  int wanted = -1;             // a HostAlgorithm instead of what the table says; -1: none
};

HostAlgorithm ChooseAlgorithm(const HostLayout& layout, const Request& request, const AlgorithmRules& rules);

}  // namespace hvd
