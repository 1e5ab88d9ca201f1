// SPDX-License-Identifier: Apache-2.0
#include "core/leaving.h"

#include <utility>
#include <vector>

#include "agreement/spoken.h"

namespace hvd {

Leaving::Verdict Leaving::Leave(bool busy) {
  left_whole_ = departures_.over().ok() && !busy;
  Verdict verdict = departures_.Leave(busy);
  if (verdict.what == Verdict::What::kSayBye) SendNotices();
  return verdict;
}

void Leaving::SendNotices() {
  std::vector<control::Finished> finished;
  for (const auto& [id, membership] : sets_.all()) {
    const ProcessSet& set = membership->set;
    membership->express.AddFinished(&finished);
    if (set.leads()) continue;
    membership->mail.SendUp(control::EncodeGone(set.tag(), sets_.rank(), membership->state.applied()));
  }
  notice_ = control::EncodeBye(finished);
  Mailbox& mailbox = *services_.mailbox;
  for (int rank : mailbox.LinkedRanks()) {
    departures_.meant_to_leave(rank) ? mailbox.DropUnsent(rank) : mailbox.Send(rank, notice_);
  }
}

Leaving::Verdict Leaving::OnNotice(int from, std::string_view body) {
  std::vector<control::Finished> finished;
  if (!control::DecodeBye(&body, &finished)) return departures_.Lose(from, "its farewell was malformed");
  for (const control::Finished& one : finished) {
    Membership* const found = sets_.Find(one.set, one.epoch);
    if (found && found->set.ranks()[0] == from) found->express.Settle(one.slot, one.round);
  }
  return departures_.OnBye(from);
}

void Leaving::OnDeparted(int rank) {
  if (first_.rank < 0) first_ = {rank, Clock::now()};
  for (const auto& [id, membership] : sets_.all()) RemoveFrom(*membership, rank);
}

void Leaving::RemoveFrom(Membership& membership, int rank) {
  const ProcessSet& set = membership.set;
  const int member = set.IndexOf(rank);
  if (member < 0) return;
  switch (Departures::WhenDeparted(set.tree(), member)) {
    case Departures::InSet::kCount:
      return membership.leader->coordinator().OnDeparture(member);
    case Departures::InSet::kClose:
      return Close(membership, rank);
    case Departures::InSet::kPassOn:
      return membership.mail.SendUp(control::EncodeGone(set.tag(), rank));
    case Departures::InSet::kFarewell:
    case Departures::InSet::kNothing:
      return;
  }
}

Leaving::Verdict Leaving::OnMemberGone(Membership& membership, int from, std::string_view whole,
                                       std::string_view body) {
  const ProcessSet& set = membership.set;
  int32_t rank = -1;
  uint64_t applied = control::kNotTold;
  if (!control::DecodeGone(&body, &rank, &applied)) {
    return {Verdict::What::kAbort, -1, "a malformed farewell arrived"};
  }
  const int member = set.IndexOf(rank);
  switch (Departures::WhenTold(set.tree(), member, set.IndexOf(from))) {
    case Departures::InSet::kCount: {
      Verdict verdict = departures_.OnMemberGone(rank, applied, membership.leader->last_batch());
      if (verdict.what == Verdict::What::kAbort) return verdict;
      SendDeparture(set, rank);
      membership.leader->coordinator().OnDeparture(member);
      break;
    }
    case Departures::InSet::kFarewell:
      departures_.OnFarewell(rank);
      break;
    case Departures::InSet::kClose:
      Close(membership, rank);
      break;
    case Departures::InSet::kPassOn:
      membership.mail.SendUp(whole);
      break;
    case Departures::InSet::kNothing:
      break;
  }
  return {};
}

// Report to all members that a rank has left. In a set where every member may send to every other, some pairs have
// never been connected. A member would try to connect to the rank that has left and take it for lost.
void Leaving::SendDeparture(const ProcessSet& set, int rank) const {
  if (!set.close_knit() || set.all_in_memory()) return;
  for (int other : set.ranks()) {
    if (other == rank || other == sets_.rank() || departures_.departed(other)) continue;
    services_.mailbox->Send(other, control::EncodeGone(set.tag(), rank));
  }
}

// Stop negotiation in a set because the connection to the leader is gone. Running batches were agreed and can still
// finish; nothing else can.
void Leaving::Close(Membership& membership, int rank) {
  const ProcessSet& set = membership.set;
  MemberState& state = membership.state;
  if (!state.closed().ok()) return;
  // Report the rank that left first as the reason, because the leader may have left only because of that.
  const int first = set.IndexOf(first_.rank) >= 0 ? first_.rank : rank;
  state.Close(departures_.ShutDown(first));
  for (auto& operation : state.pending().TakeAll()) {
    if (membership.express.Settled(*operation)) {
      state.pending().Add(std::move(operation));
    } else {
      const Status why = departures_.ShutDown(first, SpokenCall(operation->request));
      services_.completions->Finish(std::move(operation), why);
    }
  }
  for (auto& operation : membership.express.TakePostponed()) {
    services_.completions->Finish(std::move(operation), state.closed());
  }
  membership.mail.SendDown(control::EncodeGone(set.tag(), rank));
  if (set.id() == kGlobalSet) set.launches()->Close(state.closed().text);
}

}  // namespace hvd
