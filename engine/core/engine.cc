// SPDX-License-Identifier: Apache-2.0
#include "core/engine.h"

#include <algorithm>
#include <utility>

#include "agreement/control.h"
#include "agreement/spoken.h"

namespace hvd {
namespace {

constexpr uint64_t kRoundsBeforeRinging = 512;
constexpr auto kDeviceLook = std::chrono::microseconds(20);  // time between two checks of a device's progress

}  // namespace

Engine::Engine(const Parts& parts)
    : parts_(parts),
      launches_(&sets_),
      mailbox_(parts.identity.rank, parts.arena ? &reinterpret_cast<ArenaHead*>(parts.arena->at(0))->inbox : nullptr,
               parts.neighbours, parts.connector),
      departures_(parts.identity.rank, parts.host_names, std::chrono::milliseconds(parts.settings.peer_timeout_ms)),
      completions_(parts.submissions, parts.timeline),
      services_{&parts_.settings, parts.neighbours,          &mailbox_, &departures_, &completions_, parts.timeline,
                &counters_,       &parts.connector->traffic, parts.log},
      sets_(&around_, &services_, parts.submissions),
      leaving_(&departures_, &sets_, &services_),
      peers_(&departures_, &around_, &services_),
      watches_({parts.stack_teller, parts.block_teller, parts.callers, parts.devices}, &sets_, &services_) {
  around_ = {&parts_.settings,
             parts_.identity.rank,
             &parts_.host_of_rank,
             parts_.arena,
             parts_.neighbours,
             parts_.connector,
             [this] { parts_.neighbours->RingHungry(); },
             parts_.foreign,
             parts_.devices,
             launches_.order()};
  messages_ = std::make_unique<PointToPoint>(around_, &mailbox_, &completions_, parts_.log);
  if (parts_.foreign) parts_.connector->traffic.data_is_known = false;
  std::vector<int> everybody(parts_.identity.size);
  std::vector<int64_t> regions(parts_.identity.size, -1);
  for (int rank = 0; rank < parts_.identity.size; ++rank) everybody[rank] = rank;
  if (parts_.arena) {
    regions[parts_.identity.rank] = reinterpret_cast<ArenaHead*>(parts_.arena->at(0))->world_region;
  }
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (neighbour.arena) regions[neighbour.rank] = neighbour.head()->world_region;
    // The leave notice came before all ranks had connected.
    if (neighbour.life_line.farewell()) departures_.OnFarewell(neighbour.rank);
  }
  sets_.AddGlobal(everybody, regions);
  sets_.Tune(InitialTuning(parts_.settings));
  Membership& global = sets_.global();
  if (parts_.settings.autotune && global.leader) {
    const ByHost by_host{global.set.inside() != nullptr, global.set.grid_for_moves() != nullptr};
    global.applier.TuneBy(std::make_unique<TuningSession>(parts_.settings, by_host, parts_.log));
  }
}

bool Engine::Progress(bool drain, bool thorough) {
  bool moved = drain && Drain();
  Status trouble;
  const bool eager = drain && mailbox_.has_links() && AwaitsAgreement();
  Hear(eager, &moved);
  if (mailbox_.has_links() || parts_.identity.size > 1) {
    // Connections and handshakes are rare, so check them only now and then, and whenever the poller woke us.
    if ((++rounds_ & 63) == 0 || thorough) moved |= parts_.connector->Progress();
    if (mailbox_.has_links() && ((rounds_ & (eager ? 63 : 3)) == 0 || thorough)) OnEvents(parts_.poller->Collect());
    moved |= mailbox_.Flush();
  }
  sets_.ForEach([&](Membership& membership) {
    if (membership.express.has_postponed()) AnnouncePostponed(membership);
    if (membership.leader && departures_.over().ok()) moved |= Decide(membership);
    if (membership.express.delivering()) moved |= membership.express.Step();
    moved |= membership.applier.Step(&trouble);
    if (membership.prompt.busy()) moved |= membership.prompt.Step();
    if (!trouble.ok()) Act(std::exchange(trouble, {}));
  });
  moved |= messages_->Step();
  launches_.RequestWanted();
  CheckLinks();
  if (watches_.ask()) watches_.ReadAnswers();
  if (thorough || (rounds_ & 1023) == 0) Housekeep();
  // A peer between two calls reads new messages by itself. Wake it only if it stays away for many rounds.
  rounds_unrung_ = mailbox_.unrung() ? rounds_unrung_ + 1 : 0;
  if (thorough || rounds_unrung_ >= kRoundsBeforeRinging) mailbox_.RingUnread();
  return moved || mailbox_.unread() || peers_.has_spoken();
}

Engine::Clock::duration Engine::MaximumSleep() const {
  using std::chrono::milliseconds;
  if (departures_.awaits_word()) return std::min(Departures::kGrace, Heartbeats::kPeriod);
  if (mailbox_.congested()) return std::chrono::microseconds(200);
  const auto watches = [](const auto& item) { return item.second->applier.watches_device(); };
  if (std::any_of(sets_.all().begin(), sets_.all().end(), watches) || messages_->WatchesDevice()) return kDeviceLook;
  if (watches_.ask()) return std::chrono::milliseconds(10);
  milliseconds housekeeping = Heartbeats::kPeriod;
  if (departures_.over().ok()) {
    const auto left = std::chrono::ceil<milliseconds>(watches_.next_look() - Clock::now());
    housekeeping = std::clamp(left, milliseconds(1), housekeeping);
  }
  // In milliseconds, because NextWakeup's maximum overflows finer units.
  return std::min(housekeeping, parts_.connector->NextWakeup());
}

bool Engine::Hungry() const {
  return messages_->Busy() || messages_->WatchesDevice() ||
         std::any_of(sets_.all().begin(), sets_.all().end(), [](const auto& item) { return item.second->busy(); });
}

bool Engine::AwaitsAgreement() const {
  return std::any_of(sets_.all().begin(), sets_.all().end(),
                     [](const auto& item) { return !item.second->state.pending().empty(); });
}

void Engine::OnEvents(const std::vector<int>& descriptors) {
  if (descriptors.empty()) return;
  parts_.connector->Progress();
  peers_.AcceptLinks(leaving_);
  for (int fd : descriptors) {
    mailbox_.OnEvent(fd);
    peers_.OnEvent(fd);
  }
}

// ---- from this rank's callers to the leader

bool Engine::Drain() {
  if (parts_.submissions->empty()) return false;
  parts_.submissions->TakeAll(&drained_);
  if (Timeline* shown = timeline()) shown->Cycle();
  for (auto& operation : drained_) {
    Membership* const membership = sets_.Find(operation->process_set);
    const OpKind kind = operation->request.kind;
    if (!departures_.over().ok()) {
      completions_.Finish(std::move(operation), departures_.over());
    } else if (kind == OpKind::kSend || kind == OpKind::kReceive) {
      const int peer = operation->request.root;
      if (departures_.departed(peer)) {
        completions_.Finish(std::move(operation), departures_.ShutDown(peer));
      } else {
        messages_->Start(std::move(operation));
      }
    } else if (!membership) {
      completions_.Finish(std::move(operation), Status::Invalid("its process set was removed meanwhile"));
    } else if (!membership->state.closed().ok()) {
      const Status why = departures_.ShutDown(membership->state.closed().lost_rank, SpokenCall(operation->request));
      completions_.Finish(std::move(operation), why);
      // Without negotiation, only this check reports the departure of another rank.
    } else if (operation->prompt && leaving_.first_departure().rank >= 0) {
      const Status why = departures_.ShutDown(leaving_.first_departure().rank, SpokenCall(operation->request));
      completions_.Finish(std::move(operation), why);
    } else if (operation->prompt) {
      membership->prompt.Add(std::move(operation));
    } else {
      Announce(*membership, std::move(operation));
    }
  }
  drained_.clear();
  for (const auto& [id, membership] : sets_.all()) membership->mail.Flush();
  return true;
}

void Engine::Announce(Membership& membership, std::unique_ptr<Operation> operation) {
  ProcessSet& set = membership.set;
  Request& request = operation->request;
  if (request.kind == OpKind::kAddProcessSet) sets_.ReserveRegion(&request);
  if (request.kind == OpKind::kAllreduce && request.op != ReduceOp::kAdasum && set.all_in_memory() &&
      operation->input == operation->output && !operation->wide) {
    if (request.device >= 0) {
      request.place = parts_.devices->regions().PlaceOf(operation->input, request.Bytes());
    } else {
      request.place = parts_.arena->PlaceOf(operation->input, request.Bytes(), &operation->pin);
    }
  }
  if (request.kind == OpKind::kJoin) {
    if (membership.express.under_way()) return membership.express.Postpone(std::move(operation));
    membership.state.Join();
    if (request.device >= 0) set.JoinOn(std::exchange(request.device, -1));
  }
  if (Timeline* shown = timeline()) shown->Ready(set.id(), request, parts_.identity.rank);
  const Entry* known = membership.state.cache().Find(request.name);
  const bool cached = known && known->request == request;
  if (cached && MayGoExpress(membership, *operation) && membership.express.Send(&operation, known->slot)) {
    return Act(membership.express.Finish(known->slot));
  }
  Leader* const leader = membership.leader.get();
  if (cached && leader) {
    leader->coordinator().OnReady(set.me(), known->slot, membership.state.applied());
  } else if (cached) {
    membership.mail.AddReady(known->slot);
  } else if (leader) {
    leader->coordinator().OnRequest(set.me(), request);
  } else {
    membership.mail.SendRequest(request);
  }
  if (leader) leader->Hear(0, request.name);
  membership.state.Announce();
  membership.state.pending().Add(std::move(operation));
}

// Return true if the operation may use the fast path without the leader. It is meant for callers that wait for one
// tensor after another: several tensors at once are better fused. Whatever the timeline or the tuner must see has to go
// through the leader's log.
bool Engine::MayGoExpress(const Membership& membership, const Operation& operation) const {
  return membership.express.on() && operation.awaited && operation.request.device < 0 && drained_.size() == 1 &&
         parts_.settings.express_bytes > 0 && !membership.state.joined() && !timeline() &&
         (!parts_.settings.autotune || sets_.tuned().is_final());
}

// Announce postponed joins. A rank that has joined contributes zeros to everything, so its earlier operations must be
// over.
void Engine::AnnouncePostponed(Membership& membership) {
  if (membership.express.under_way()) return;
  for (auto& operation : membership.express.TakePostponed()) Announce(membership, std::move(operation));
  membership.mail.Flush();
}

// ---- messages between ranks

void Engine::OnMessage(int from, std::string_view message) {
  std::string_view body = message;
  control::Header header;
  if (!control::Decode(&body, &header)) return Act(departures_.Lose(from, "it sent a malformed control message"));
  if (header.type == control::Type::kPing) return;  // a ping carries no data
  if (header.type == control::Type::kBye) return Act(leaving_.OnNotice(from, body));
  if (header.type == control::Type::kAbort) {
    int32_t lost = -1;
    std::string why;
    if (control::DecodeAbort(&body, &lost, &why)) Abort(lost, why);
    return;
  }
  if (header.type == control::Type::kOffer || header.type == control::Type::kAccept) {
    const bool clear =
        header.type == control::Type::kOffer ? messages_->OnOffer(from, body) : messages_->OnAccept(from, body);
    if (!clear) Act(departures_.Lose(from, "it sent a malformed point-to-point message"));
    return;
  }
  if (Membership* const membership = sets_.Find(header.set, header.epoch)) {
    return OnSetMessage(*membership, from, message, body);
  }
  // Either the record that adds the set has not arrived yet, or the set was removed before the message arrived.
  sets_.KeepEarly(from, header.epoch, message);
}

void Engine::OnSetMessage(Membership& membership, int from, std::string_view whole, std::string_view body) {
  switch (control::TypeOf(whole)) {
    case control::Type::kExpress:
    case control::Type::kExpressPlace:
      return Act(membership.express.OnPart(from, body, control::TypeOf(whole) == control::Type::kExpressPlace));
    case control::Type::kExpressOthers:
      return Act(membership.express.OnOthers(from, whole, body));
    case control::Type::kExpressGone:
      return Act(membership.express.OnGone(from, body));
    case control::Type::kReady:
    case control::Type::kRequest:
      return Act(membership.OnReport(whole, body));
    case control::Type::kRecord: {
      const auto apply = [&](Record record) { Apply(membership, std::move(record)); };
      if (membership.mail.OnWayDown<Record>(whole, body, apply)) return;
      return Act(departures_.Lose(membership.set.ranks()[0], "the leader sent a malformed record"));
    }
    case control::Type::kGone:
      return Act(leaving_.OnMemberGone(membership, from, whole, body));
    case control::Type::kStall:
    case control::Type::kStack:
    case control::Type::kBlock:
    case control::Type::kWait:
    case control::Type::kDeadlock:
      if (watches_.OnMessage(membership, whole, body)) DecideInAllSets();
      return;
    case control::Type::kTurn:
      return Act(launches_.OnRequest(whole, body));
    default:
      return;
  }
}

bool Engine::Decide(Membership& membership) {
  std::vector<Record> records = membership.leader->coordinator().Decide();
  for (Record& record : records) {
    membership.express.AddRounds(&record);
    membership.leader->Publishes(record);
    membership.mail.Publish(control::Type::kRecord, record);
    Apply(membership, std::move(record));
  }
  return !records.empty();
}

// Decide in every set that this rank leads. The decisions may add and remove sets.
void Engine::DecideInAllSets() {
  sets_.ForEach([this](Membership& membership) {
    if (membership.leader) Decide(membership);
  });
}

void Engine::Apply(Membership& membership, Record record) {
  if (!departures_.over().ok()) return;
  const Applier::Outcome outcome = membership.applier.Apply(&record);
  if (!outcome.status.ok()) return Act(outcome.status);
  if (record.kind == RecordKind::kTune && membership.set.id() == kGlobalSet) return sets_.Tune(record.tuning);
  if (record.kind == RecordKind::kTurns) return launches_.Add(record.turns);
  if (outcome.change) ChangeSets(membership.state, *outcome.change);
}

// Carry out an agreed request to add or remove a process set.
void Engine::ChangeSets(MemberState& state, const Entry& entry) {
  auto operation = state.pending().Take(entry.request.name);
  const bool adds = entry.request.kind == OpKind::kAddProcessSet;
  if (!adds) {
    sets_.Remove(entry);
  } else if (Membership* const added = sets_.Add(entry)) {
    for (int rank : added->set.ranks()) {  // members whose leave notice came before we knew the set
      if (departures_.departed(rank)) leaving_.RemoveFrom(*added, rank);
    }
  }
  if (operation) {
    if (adds) operation->handle->value = entry.sizes.at(0);
    completions_.Finish(std::move(operation), Status::Ok());
  }
  if (!adds) return;
  for (const auto& [from, message] : sets_.TakeEarly()) OnMessage(from, message);
}

}  // namespace hvd
