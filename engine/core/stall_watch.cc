// SPDX-License-Identifier: Apache-2.0
#include "core/stall_watch.h"

#include <algorithm>

#include "agreement/spoken.h"
#include "base/rank_list.h"

namespace hvd {
namespace {

constexpr size_t kMostAsked = 6;  // missing ranks whose stacks are requested

std::string Describe(const StallInspector::Finding& finding, const Membership& membership) {
  const ProcessSet& set = membership.set;
  const bool several = finding.missing.size() > 1;
  std::string text = SpokenName(finding.name) + " has waited " +
                     std::to_string(std::chrono::duration_cast<std::chrono::seconds>(finding.waited).count()) +
                     " s: " + NameRanks(finding.missing) + " of " + std::to_string(set.ranks().size()) +
                     (several ? " have" : " has") + " not submitted it (last submitted: ";
  for (size_t i = 0; i < finding.missing.size() && i < kMostAsked; ++i) {
    const std::string& last = membership.leader->last_heard(set.IndexOf(finding.missing[i]));
    text += std::string(i ? "; " : "") + "rank " + std::to_string(finding.missing[i]) + ": " +
            (last.empty() ? "nothing yet" : SpokenName(last));
  }
  return text + ")";
}

}  // namespace

Status StallWatch::Look(Membership& membership, Clock::time_point now) {
  bool first = true;
  for (const StallInspector::Finding& finding : membership.leader->FindStalls(now)) {
    const std::string text = Describe(finding, membership);
    if (finding.fatal) {
      return Status::Failed(text + ". The job ends because HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set");
    }
    control::StallNotice notice;
    notice.name = finding.name;
    notice.text = "WARNING: " + text + ". If they are only slow, raise HOROVOD_STALL_CHECK_TIME_SECONDS (now " +
                  std::to_string(services_.settings->stall_warning_ms / 1000) +
                  "); `hvd stacks PID` shows what a process is doing";
    // The stack of a missing rank is the same for all tensors that wait for it, so request it once per check.
    if (first) notice.asked.assign(finding.missing.begin(), finding.missing.end());
    if (notice.asked.size() > kMostAsked) notice.asked.resize(kMostAsked);
    first = false;
    membership.mail.Publish(control::Type::kStall, notice);
    Handle(membership, notice);
  }
  return Status::Ok();
}

// Forward and show a stall warning. The warning is sent at once; the stacks of the missing ranks follow if these ranks
// can report them. A rank that is frozen or dead does not answer, and no rank waits for its answer.
void StallWatch::OnNotice(Membership& membership, std::string_view whole, std::string_view body) {
  membership.mail.OnWayDown<control::StallNotice>(
      whole, body, [&](const control::StallNotice& notice) { Handle(membership, notice); });
}

void StallWatch::Handle(const Membership& membership, const control::StallNotice& notice) {
  Show(membership, notice.name, notice.text);
  if (std::find(notice.asked.begin(), notice.asked.end(), sets_.rank()) == notice.asked.end()) return;
  if (teller_.asked()) return;  // one request at a time is enough
  asking_set_ = membership.set.id();
  tensor_ = notice.name;
  teller_.Ask(Clock::now());
}

// Log the text if this rank waits for the tensor, so that each waiting rank logs it once.
void StallWatch::Show(const Membership& membership, const std::string& name, const std::string& text) const {
  if (membership.state.pending().Find(name)) services_.log.Relay(text);
}

void StallWatch::OnAnswer(Membership& membership, std::string_view whole, std::string_view body) {
  membership.mail.OnWayUp<control::StackAnswer>(
      whole, body, [&](const control::StackAnswer& answer) { Forward(membership, answer); });
}

// Send a missing rank's stack, which has reached the leader, to all members.
void StallWatch::Forward(Membership& membership, const control::StackAnswer& answer) const {
  membership.mail.Publish(control::Type::kStall, control::StallNotice{answer.name, answer.text, {}});
  Show(membership, answer.name, answer.text);
}

void StallWatch::ReadAnswer() {
  const std::optional<std::string> answer = teller_.Answer(Clock::now());
  if (!answer) return;
  Membership* const membership = sets_.Find(asking_set_);
  if (!membership || !services_.departures->over().ok()) return;
  const std::string text = "rank " + std::to_string(sets_.rank()) + ", which is missing, is here: " + *answer;
  membership->mail.ToLeader(control::Type::kStack, control::StackAnswer{tensor_, text},
                            [&](const control::StackAnswer& mine) { Forward(*membership, mine); });
}

}  // namespace hvd
