// SPDX-License-Identifier: Apache-2.0
#include "core/watches.h"

namespace hvd {

Watches::Findings Watches::Look(Clock::time_point now, const Leaving::First& first) {
  Findings findings;
  for (const auto& [id, membership] : sets_.all()) {
    if (!membership->leader) continue;
    const Status status = stalls_.Look(*membership, now);
    if (status.ok()) continue;
    findings.verdict = {Departures::Verdict::What::kAbort, status.lost_rank, status.text};
    return findings;
  }
  findings.has_failed = deadlocks_.Look(now);
  findings.verdict = gpus_.Look(now, first);
  return findings;
}

bool Watches::OnMessage(Membership& membership, std::string_view whole, std::string_view body) {
  switch (control::TypeOf(whole)) {
    case control::Type::kStall:
      stalls_.OnNotice(membership, whole, body);
      return false;
    case control::Type::kStack:
      stalls_.OnAnswer(membership, whole, body);
      return false;
    default:
      return deadlocks_.OnMessage(membership, whole, body);
  }
}

}  // namespace hvd
