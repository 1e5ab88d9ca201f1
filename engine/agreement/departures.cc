// SPDX-License-Identifier: Apache-2.0
#include "agreement/departures.h"

#include <algorithm>

#include "agreement/spoken.h"
#include "base/loss.h"

namespace hvd {
namespace {

// Return the words that name the reporting rank. All ranks repeat the reason, and the driver of an elastic job needs to
// know which rank does not reach the lost one.
std::string SaidBy(int rank) { return ", says rank " + std::to_string(rank); }

}  // namespace

Departures::Departures(int me, std::vector<std::string> hosts, WatchSpan patience)
    : me_(me), hosts_(std::move(hosts)), states_(hosts_.size(), State::kPresent), heartbeats_(patience) {}

bool Departures::End(const Status& why) {
  if (!over_.ok()) return false;
  over_ = why;
  return true;
}

bool Departures::LeavingAmong(const std::vector<int>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return meant_to_leave(rank); });
}

std::pair<int, std::string> Departures::UnexplainedAmong(const std::vector<int>& ranks) const {
  for (auto one = unexplained_.rbegin(); one != unexplained_.rend(); ++one) {
    if (std::binary_search(ranks.begin(), ranks.end(), one->first)) return *one;
  }
  return {-1, ""};
}

void Departures::Enter(int rank, State state) {
  states_[static_cast<size_t>(rank)] = state;
  heartbeats_.Forget(rank);
}

void Departures::OnFarewell(int rank) {
  if (StateOf(rank) == State::kPresent) Enter(rank, State::kLeaving);
}

Departures::Verdict Departures::OnBye(int rank) {
  if (departed(rank)) return {};
  Enter(rank, State::kDeparted);
  return {Verdict::What::kPart, rank, ""};
}

Departures::Verdict Departures::OnEnded(int rank, bool in_memory, WatchTime now) {
  if (!in_memory && meant_to_leave(rank)) return {};
  return OnBroken(rank, "its process ended", now);
}

Departures::Verdict Departures::OnBroken(int rank, const std::string& why, WatchTime now) {
  if (departed(rank) || !over_.ok()) return {};
  if (StateOf(rank) == State::kPresent) return LoseContact(rank, why, now);
  // The rank was leaving, but its last messages were lost with the link or did not fit into our inbox. One of them may
  // have said that the rank gave up an operation for which we still wait.
  Enter(rank, State::kUnexplained);
  unexplained_[rank] = why;
  if (heartbeats_.Absence(now) > WatchSpan::zero()) return LoseContact(rank, why, now);
  return {Verdict::What::kPart, rank, ""};
}

Departures::Verdict Departures::OnDeserted(int rank, WatchTime now) const {
  if (meant_to_leave(rank)) return {};
  return LoseContact(rank, "its process ended before it had connected" + SaidBy(me_), now);
}

Departures::Verdict Departures::OnNeeded(int rank, const std::string& why, WatchTime now) {
  if (!awaits_word()) broken_since_ = now;
  if (now - broken_since_ < kGrace) return {};
  return LoseContact(rank, "the connection to it broke (" + why + ")" + SaidBy(me_), now);
}

Departures::Verdict Departures::OnMemberGone(int rank, uint64_t applied, uint64_t last_batch) const {
  if (applied >= last_batch) return {};
  return {Verdict::What::kAbort, rank, LeftInTheMiddle(rank)};
}

Departures::Verdict Departures::Lose(int rank, const std::string& why) const {
  return {Verdict::What::kAbort, rank, NameLoss(rank, hosts_[static_cast<size_t>(rank)], why)};
}

Departures::Verdict Departures::Judge(const Status& trouble) const {
  if (trouble.ok()) return {};
  if (trouble.lost_rank < 0) return {Verdict::What::kAbort, -1, trouble.text};
  return Lose(trouble.lost_rank, trouble.text);
}

// Report a lost rank, unless this rank itself was suspended: then the others have given it up and left.
Departures::Verdict Departures::LoseContact(int rank, const std::string& why, WatchTime now) const {
  const WatchSpan absence = heartbeats_.Absence(now);
  if (absence > WatchSpan::zero()) return Lose(me_, Heartbeats::AbsenceText(absence));
  return Lose(rank, why);
}

void Departures::Expect(int rank, WatchTime since) {
  if (!meant_to_leave(rank)) heartbeats_.Expect(rank, since);
}

Departures::Verdict Departures::Look(WatchTime now) {
  const std::vector<int> silent = heartbeats_.Silent(now);
  return silent.empty() ? Verdict() : Lose(silent[0], heartbeats_.SilenceText() + SaidBy(me_));
}

Departures::Verdict Departures::Leave(bool busy) const {
  if (!over_.ok()) return {};
  if (busy) return {Verdict::What::kAbort, me_, LeftInTheMiddle(me_)};
  return {Verdict::What::kSayBye, me_, ""};
}

Status Departures::ShutDown(int rank) const {
  return Status::Failed("Horovod has been shut down: rank " + std::to_string(rank) + " (on host '" +
                            hosts_[static_cast<size_t>(rank)] +
                            "') called shutdown or exited, and this operation needs it",
                        rank);
}

Status Departures::ShutDown(int rank, const std::string& call) const {
  return Status::Failed(FinishedEarly(rank, {me_}, call), rank);
}

std::string Departures::LeftInTheMiddle(int rank) const {
  return "Horovod has been shut down: rank " + std::to_string(rank) + " (on host '" +
         hosts_[static_cast<size_t>(rank)] + "') called shutdown or exited in the middle of a collective";
}

Departures::InSet Departures::WhenDeparted(const Tree& tree, int member) {
  if (tree.parent < 0) return InSet::kCount;
  if (member == tree.parent) return InSet::kClose;
  const bool child = std::find(tree.children.begin(), tree.children.end(), member) != tree.children.end();
  return child ? InSet::kPassOn : InSet::kNothing;
}

Departures::InSet Departures::WhenTold(const Tree& tree, int member, int by) {
  if (tree.parent < 0) return member <= 0 ? InSet::kNothing : InSet::kCount;
  if (member == 0 || member == tree.parent) return InSet::kClose;
  if (by == tree.parent && by != 0) return InSet::kClose;
  return by == 0 && member > 0 ? InSet::kFarewell : InSet::kPassOn;
}

}  // namespace hvd
