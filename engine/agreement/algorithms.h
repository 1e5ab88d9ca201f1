// SPDX-License-Identifier: Apache-2.0
// Chooses the algorithm that a reduction uses between hosts. Only the leader calls it; its answer is in the record. The
// choice depends on the hosts and on the tensor's size only, never on fusion or timing, so that a job gives the same
// bits each time. Pure.
#pragma once

#include <cstddef>

#include "agreement/message.h"

namespace hvd {

// Distribution of a set's members over hosts.
struct HostLayout {
  int hosts = 1;
  // True if each host exchanges data with one counterpart on every other host: it has one member, or equally many as
  // the others and the hierarchy is in use. Otherwise members of several hosts are mixed, which only direct exchange
  // supports.
  bool even = false;
};

struct AlgorithmRules {
  bool deterministic = false;  // always sum in rank order
  int wanted = -1;             // algorithm (a HostAlgorithm) to use instead of the table's; -1: follow the table
};

HostAlgorithm ChooseAlgorithm(const HostLayout& layout, const Request& request, const AlgorithmRules& rules);

}  // namespace hvd
