// SPDX-License-Identifier: Apache-2.0
// This rank's membership in one process set: the members, the negotiation state and the running operations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agreement/leader.h"
#include "core/applier.h"
#include "core/express_protocol.h"
#include "core/member_state.h"
#include "core/process_set.h"
#include "core/prompt_runs.h"
#include "core/services.h"
#include "core/set_mail.h"

namespace hvd {

struct Membership {
  Membership(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
             const Surroundings& around, const Services* services);

  // Return true while an operation runs that was agreed upon or needs no negotiation.
  bool busy() const { return express.delivering() || applier.busy() || prompt.busy(); }

  // Process a member's report on its way to the leader. `body` is the message without its header. Return why the world
  // must end, or ok.
  Status OnReport(std::string_view whole, std::string_view body);
  // Fail all operations of this rank in the set, agreed upon or not.
  void Fail(const Status& status);

  ProcessSet set;
  MemberState state;
  SetMail mail;
  std::unique_ptr<Leader> leader;  // null unless this rank leads the set
  ExpressProtocol express;
  Applier applier;
  PromptRuns prompt;

 private:
  void Count(control::Report report);

  const Services& services_;
};

}  // namespace hvd
