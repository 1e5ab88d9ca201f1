// SPDX-License-Identifier: Apache-2.0
#include "agreement/watch.h"

namespace hvd {

std::vector<StallInspector::Finding> StallInspector::Inspect(const std::vector<Coordinator::Waiting>& waiting,
                                                             WatchTime now) {
  std::vector<Finding> findings;
  if (options_.warning == WatchSpan::zero()) return findings;
  for (auto& [name, since] : since_) since.present = false;
  for (const Coordinator::Waiting& tensor : waiting) {
    Since& since = since_.emplace(tensor.name, Since{now}).first->second;
    since.present = true;
    const WatchSpan waited = now - since.first;
    const bool fatal = options_.shutdown > WatchSpan::zero() && waited >= options_.shutdown;
    if (!fatal && (since.warned || waited < options_.warning)) continue;
    since.warned = true;
    findings.push_back({tensor.name, tensor.missing, waited, fatal});
  }
  for (auto it = since_.begin(); it != since_.end();) it = it->second.present ? std::next(it) : since_.erase(it);
  return findings;
}

}  // namespace hvd
