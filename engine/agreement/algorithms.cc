// SPDX-License-Identifier: Apache-2.0
#include "agreement/algorithms.h"

#include <cstdint>

namespace hvd {
namespace {

// Algorithm by number of hosts and size: the first row that fits counts. Measured by benchmarks/many_hosts.py on 16
// cores (docs/decisions/host-algorithms.md). Up to 256 KB the number of messages dominates, beyond that the bytes;
// direct exchange is fastest until it has too many streams with too small shares.
constexpr int kFewHosts = 8, kSomeHosts = 16;
constexpr size_t kShortBytes = size_t{256} << 10, kMediumBytes = size_t{4} << 20;
struct Row {
  int most_hosts;
  size_t most_bytes;  // limit for one tensor
  HostAlgorithm algorithm;
};
constexpr Row kTable[] = {
    {kFewHosts, SIZE_MAX, HostAlgorithm::kDirect},
    {INT32_MAX, kShortBytes, HostAlgorithm::kDoubling},
    {kSomeHosts, kMediumBytes, HostAlgorithm::kDirect},
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
  // Adasum has its own algorithm between hosts.
  if (request.kind != OpKind::kAllreduce || request.op == ReduceOp::kAdasum) return HostAlgorithm::kDirect;
  const size_t bytes = request.Bytes();
  if (layout.hosts < 2 || !layout.even || bytes == 0) return HostAlgorithm::kDirect;
  const bool known = rules.wanted >= 0 && rules.wanted <= static_cast<int>(kLastHostAlgorithm);
  const HostAlgorithm chosen = known ? static_cast<HostAlgorithm>(rules.wanted) : ByTable(layout.hosts, bytes);
  if (!rules.deterministic || SumsInOrder(chosen)) return chosen;
  // Direct exchange and the ring sum in rank order; doubling does not. With many hosts use the ring, which needs as few
  // connections as doubling.
  return layout.hosts <= kSomeHosts ? HostAlgorithm::kDirect : HostAlgorithm::kRing;
}

}  // namespace hvd
