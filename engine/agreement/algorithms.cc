// SPDX-License-Identifier: Apache-2.0
#include "agreement/algorithms.h"

#include <cstdint>

namespace hvd {
namespace {

// The first row that holds. An estimate from messages of 20 to 50 us between machines: doubling sends log2(hosts) of
// them, a ring 2 (hosts - 1). On one machine, where a message costs less, benchmarks/many_hosts.py sees the ring ahead
// earlier.
struct Row {
  int most_hosts;
  size_t most_bytes;  // of one tensor
  HostAlgorithm algorithm;
};
constexpr Row kTable[] = {
    {8, SIZE_MAX, HostAlgorithm::kDirect},
    {INT32_MAX, size_t{1} << 20, HostAlgorithm::kDoubling},
    {INT32_MAX, SIZE_MAX, HostAlgorithm::kRing},
};

HostAlgorithm ByTable(int hosts, size_t bytes) {
  for (const Row& row : kTable) {
    if (hosts <= row.most_hosts && bytes <= row.most_bytes) return row.algorithm;
  }
  return HostAlgorithm::kDirect;
}

}  // namespace

HostAlgorithm ChooseAlgorithm(const HostLayout& layout, const Request& request, const AlgorithmRules& rules) {
  // Adasum has a tree of its own.
  if (request.kind != OpKind::kAllreduce || request.op == ReduceOp::kAdasum) return HostAlgorithm::kDirect;
  const size_t bytes = request.Bytes();
  if (layout.hosts < 2 || !layout.even || bytes == 0) return HostAlgorithm::kDirect;
  const bool known = rules.wanted >= 0 && rules.wanted <= static_cast<int>(kLastHostAlgorithm);
  const HostAlgorithm chosen = known ? static_cast<HostAlgorithm>(rules.wanted) : ByTable(layout.hosts, bytes);
  // The ring sums in order too, and knows as few neighbours.
  return rules.deterministic && !SumsInOrder(chosen) ? HostAlgorithm::kRing : chosen;
}

}  // namespace hvd
