// SPDX-License-Identifier: Apache-2.0
// Collectives that go express: told to all members at once, finished when all have told theirs (see express.h).
#include <algorithm>

#include "agreement/control.h"
#include "core/engine.h"
#include "core/express_run.h"

namespace hvd {
namespace {

// In memory: more than one cell of the inbox takes longer than a look into a buffer.
constexpr size_t kMostInCell = InboxCell::kPayload - control::kHeaderBytes - sizeof(control::Part);

ExpressRun RunOf(const ProcessSet& set, const Entry& entry) {
  const int root = entry.request.kind == OpKind::kBroadcast ? set.IndexOf(entry.request.root) : -1;
  return ExpressRun(entry, set.ranks().size(), static_cast<size_t>(set.me()), root);
}

uint32_t UnitOf(const ProcessSet& set, const std::byte* place) {
  return static_cast<uint32_t>(static_cast<size_t>(place - set.arena_of(set.me())) / control::Place::kUnit);
}

bool MakesSense(const ProcessSet& set, const ExpressRun& run, size_t member, const Express::Piece& piece) {
  if (piece.size != Express::kInPlace) return piece.size == run.BytesFrom(member) && !run.IsPushed();
  const auto offset = static_cast<size_t>(piece.data - set.arena_of(static_cast<int>(member)));
  const size_t bytes = run.IsPushed() ? run.OutputBytes(member) : run.BytesFrom(member);
  return offset <= Arena::kExtent && bytes <= Arena::kExtent - offset;
}

}  // namespace

// For callers that wait for one tensor after the other. What comes in numbers is better fused; what the timeline or the
// tuner should see must pass the leader's log.
bool Engine::MayGoExpress(const ProcessSet& set, const Operation& operation) const {
  return set.express && operation.awaited && drained_.size() == 1 && parts_.settings.express_bytes > 0 && !set.joined &&
         !timeline() && (!parts_.settings.autotune || tuned_.final.load(kRelaxed));
}

// False: it has to go the usual way. Which form of part it takes follows from what all members know, so that all take
// the same unless one of them lacks the memory.
bool Engine::SendExpress(ProcessSet& set, std::unique_ptr<Operation>* operation, uint32_t slot) {
  const Entry& entry = *set.known[slot];
  const ExpressRun run = RunOf(set, entry);
  if (!run.CountsAsRound()) return false;
  const control::Part part{slot, set.express->Round(slot), set.applied};
  const size_t carried = run.MostBytes() * (set.ranks().size() - 1);  // to, or from, all others
  if (!set.all_in_memory()) {
    if (carried > parts_.settings.express_bytes) return false;
    CarryPart(set, run, std::move(*operation), part);
    return true;
  }
  if (run.IsPushed()) return OfferOutput(set, run, operation, part);
  if (run.MostBytes() <= kMostInCell) {
    CarryPart(set, run, std::move(*operation), part);
    return true;
  }
  // Of a longer allreduce every member had better sum a share.
  const size_t most_read = std::max(parts_.settings.small_bytes, parts_.settings.express_bytes);
  if (entry.request.kind == OpKind::kAllreduce && carried > most_read) return false;
  return ShowPart(set, run, operation, part);
}

// The bytes go with the message.
void Engine::CarryPart(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation> operation,
                       const control::Part& part) {
  const size_t bytes = run.BytesFrom(static_cast<size_t>(set.me()));
  std::string message = control::EncodeExpress(set.tag(), part, bytes);
  const size_t header = message.size();
  message.resize(header + bytes);
  std::byte* const data = reinterpret_cast<std::byte*>(message.data()) + header;
  run.Write(*operation, data);
  for (int rank : set.ranks()) {
    if (rank != parts_.identity.rank) mailbox_.Send(rank, message);
  }
  AwaitParts(set, std::move(operation), part, {data, bytes, 0});
}

// The bytes lie in a buffer of ours, from which all others copy.
bool Engine::ShowPart(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation>* operation,
                      const control::Part& part) {
  if (run.MostBytes() > ExpressMemory::kBufferBytes) return false;
  std::byte* const buffer = set.express_memory->FreeBuffer();
  if (!buffer) {
    // Others may be short of buffers too, since parts of several tensors crossed on their way: each then helps the
    // rest.
    TellGone(set);
    return false;
  }
  run.Write(**operation, buffer);
  TellPlace(set, part, set.express_memory->NextNumber(true), buffer);
  AwaitParts(set, std::move(*operation), part, {buffer, Express::kInPlace, 0});
  return true;
}

// Our output lies where all others reach it and will write theirs.
bool Engine::OfferOutput(ProcessSet& set, const ExpressRun& run, std::unique_ptr<Operation>* operation,
                         const control::Part& part) {
  // One at a time: a single number tells the others what we have delivered.
  if (set.delivery || !set.express->IsOver(set.pushed.first, set.pushed.second)) return false;
  if (set.single_copy_bytes() == SIZE_MAX) return false;
  std::byte* const output = run.PlaceForPushes(operation->get(), set.own_arena());
  if (!output) return false;
  const uint64_t number = set.express_memory->NextNumber(false);
  TellPlace(set, part, number, output);
  set.pushed = {part.slot, part.round};
  AwaitParts(set, std::move(*operation), part, {output, Express::kInPlace, number});
  return true;
}

void Engine::TellPlace(ProcessSet& set, const control::Part& part, uint64_t number, const std::byte* place) {
  control::Place told{number, 0, UnitOf(set, place)};
  for (size_t j = 0; j < set.ranks().size(); ++j) {
    if (static_cast<int>(j) == set.me()) continue;
    told.gone_up_to = set.express_memory->GoneUpTo(j);
    mailbox_.Send(set.ranks()[j], control::EncodeExpress(set.tag(), part, told));
  }
}

void Engine::TellGone(const ProcessSet& set) {
  for (size_t j = 0; j < set.ranks().size(); ++j) {
    if (static_cast<int>(j) == set.me()) continue;
    mailbox_.Send(set.ranks()[j], control::EncodeExpressGone(set.tag(), set.express_memory->GoneUpTo(j)));
  }
}

void Engine::OnGoneParts(ProcessSet& set, int from, std::string_view body) {
  uint64_t up_to = 0;
  const int member = set.IndexOf(from);
  if (member < 0 || !set.express_memory || !control::DecodeExpressGone(&body, &up_to)) {
    return Lose(from, "it sent a malformed message about parts");
  }
  set.express_memory->Acknowledged(static_cast<size_t>(member), up_to);
}

void Engine::AwaitParts(ProcessSet& set, std::unique_ptr<Operation> operation, const control::Part& part,
                        const Express::Piece& own) {
  operation->slot = part.slot;
  operation->round = part.round;
  set.pending.Add(std::move(operation));
  OnPart(set, set.me(), part, own);
}

void Engine::OnExpress(ProcessSet& set, int from, std::string_view body, bool in_place) {
  control::Part part;
  control::Place place;
  const int member = set.IndexOf(from);
  const bool clear = member >= 0 && set.express && control::DecodeExpress(&body, &part);
  if (!clear || (in_place && (!set.all_in_memory() || !control::DecodePlace(&body, &place)))) {
    return Lose(from, "it sent a malformed part of a collective");
  }
  Express::Piece piece{reinterpret_cast<const std::byte*>(body.data()), body.size(), 0};
  if (in_place) {
    set.express_memory->Acknowledged(static_cast<size_t>(member), place.gone_up_to);
    set.express_memory->Came(static_cast<size_t>(member), place.number);
    piece = {set.arena_of(member) + place.unit * control::Place::kUnit, Express::kInPlace, place.number};
  }
  // Of a slot that it knew and we do not, one may still come to know; if we know all that it knew, it is gone for good.
  const bool certain = set.leads() || part.seen <= set.applied;
  if (!certain || set.known.count(part.slot)) return OnPart(set, member, part, piece);
  if (in_place) set.express_memory->Gone(static_cast<size_t>(member), place.number);
  if (set.leads()) set.coordinator->OnReady(member, part.slot, part.seen);
}

void Engine::OnPart(ProcessSet& set, int member, const control::Part& part, const Express::Piece& piece) {
  if (!set.express->Add(part.slot, part.round, static_cast<size_t>(member), part.seen, piece)) return;
  if (part.round != set.express->Round(part.slot)) return;
  if (set.leads()) HearPart(set, member, part.slot, part.seen);
  FinishExpress(set, part.slot);
}

void Engine::HearPart(ProcessSet& set, int member, uint32_t slot, uint64_t seen) {
  const Request& request = set.known[slot]->request;
  set.last_heard[member] = request.name;
  // Others may not know that a timeline is on here: then it is the leader's word after all that decides.
  if (Timeline* shown = timeline()) shown->Ready(set.id(), request, set.ranks()[member]);
  set.coordinator->OnReady(member, slot, seen, true);
}

void Engine::FinishExpress(ProcessSet& set, uint32_t slot) {
  auto known = set.known.find(slot);
  if (known == set.known.end() || !set.express->Complete(slot, &parts_of_all_)) return;
  std::unique_ptr<Operation> operation = set.pending.Take(known->second->request.name);
  if (!operation) return;  // it failed when the leader left
  const ExpressRun run = RunOf(set, *known->second);
  for (size_t j = 0; j < parts_of_all_.size(); ++j) {
    if (MakesSense(set, run, j, parts_of_all_[j])) continue;
    const std::string name = operation->request.name;
    set.pending.Add(std::move(operation));  // to fail with the rest
    return Abort(-1, "a part of '" + name + "' is malformed");
  }
  ++express_runs_;
  if (parts_of_all_[0].size == Express::kInPlace && run.IsPushed()) {
    run.Push(*operation, parts_of_all_);
    set.express_memory->Deliver(parts_of_all_[static_cast<size_t>(set.me())].number);
    WakeNeighbours();
    set.delivery.emplace(ProcessSet::Delivery{std::move(operation), slot, set.express->Round(slot), {}});
    for (const Express::Piece& piece : parts_of_all_) set.delivery->numbers.push_back(piece.number);
    ++single_copy_batches_;
    FinishDelivery(set);
  } else {
    run.Assemble(operation.get(), parts_of_all_);
    Finish(std::move(operation), Status::Ok());
  }
  set.express->End(slot);
  AfterRound(set, slot);
}

// Our output is complete when all members have written their share.
bool Engine::FinishDelivery(ProcessSet& set) {
  for (size_t j = 0; j < set.ranks().size(); ++j) {
    const bool left = departed_.count(set.ranks()[j]);  // it did all that it ever will before it said so
    if (set.express_memory->HasDelivered(j, set.delivery->numbers[j])) continue;
    if (!left) return false;
    EndDelivery(set, ShutDown(set.ranks()[j]));
    return true;
  }
  EndDelivery(set, Status::Ok());
  return true;
}

void Engine::EndDelivery(ProcessSet& set, const Status& status) {
  std::unique_ptr<Operation> operation = std::move(set.delivery->operation);
  set.delivery.reset();
  Finish(std::move(operation), status);
}

// A record ran it, by the word of the leader.
void Engine::EndRound(ProcessSet& set, const Entry& entry) {
  if (!set.express || !RunOf(set, entry).CountsAsRound()) return;
  set.express->End(entry.slot);
  AfterRound(set, entry.slot);
}

void Engine::AfterRound(ProcessSet& set, uint32_t slot) {
  if (!set.leads()) return;
  for (const Express::Report& report : set.express->TakeCurrent(slot)) {
    const int member = static_cast<int>(report.member);
    if (report.express) {
      HearPart(set, member, slot, report.seen);
    } else if (report.request) {
      set.coordinator->OnRequest(member, *report.request);
    } else {
      set.coordinator->OnReady(member, slot, report.seen);
    }
  }
}

// Whoever has joined takes part in everything with zeros, so what it sent before must be over.
void Engine::AnnouncePostponed(ProcessSet& set) {
  if (HasExpress(set)) return;
  auto postponed = std::move(set.postponed);
  set.postponed.clear();
  for (auto& operation : postponed) Announce(set, std::move(operation));
  FlushReady();
}

bool Engine::HasExpress(const ProcessSet& set) {
  return set.delivery || set.pending.Any([](const Operation& operation) { return operation.round != kNoRound; });
}

// The leader's: a member speaks of a tensor whose part it has sent, so it has its result and means the next round.
bool Engine::IsEarly(const ProcessSet& set, int member, uint32_t slot) {
  return set.express && set.express->Has(slot, static_cast<size_t>(member));
}

void Engine::NumberErrors(const ProcessSet& set, Record* record) {
  if (record->kind != RecordKind::kError || !set.express) return;
  for (const std::string& name : record->names) {
    const Entry* known = set.Known(name);
    const bool counts = known && RunOf(set, *known).CountsAsRound();
    record->rounds.push_back(counts ? set.express->Round(known->slot) : kNoRound);
  }
}

void Engine::ApplyError(ProcessSet& set, const Record& record) {
  for (size_t i = 0; i < record.names.size(); ++i) {
    const uint32_t round = i < record.rounds.size() ? record.rounds[i] : kNoRound;
    const Operation* waiting = set.pending.Find(record.names[i]);
    // The run before may still lack a part that all others have: it is not the one that failed.
    const bool earlier = waiting && round != kNoRound && waiting->round < round;
    const Entry* known = set.Known(record.names[i]);
    if (!earlier) {
      if (auto operation = set.pending.Take(record.names[i])) Finish(std::move(operation), record.error);
    }
    if (round == kNoRound || !known) continue;
    const bool delivers = set.delivery && set.delivery->slot == known->slot && set.delivery->round == round;
    if (delivers) EndDelivery(set, record.error);  // some member never heard of everybody
    set.express->EndBy(known->slot, round);
    AfterRound(set, known->slot);
  }
}

// What a leader that leaves has finished, its members will finish too: every part of it is on its way to them.
std::vector<control::Finished> Engine::FinishedRounds() const {
  std::vector<control::Finished> finished;
  for (const auto& [id, set] : sets_) {
    if (!set->leads() || !set->express) continue;
    for (const auto& [slot, round] : set->express->Rounds()) finished.push_back({id, set->epoch(), slot, round});
  }
  return finished;
}

void Engine::OnBye(int from, std::string_view body) {
  std::vector<control::Finished> finished;
  if (!control::DecodeBye(&body, &finished)) return Lose(from, "its farewell was malformed");
  for (const control::Finished& one : finished) {
    auto set = sets_.find(one.set);
    const bool ours = set != sets_.end() && set->second->epoch() == one.epoch && set->second->ranks()[0] == from;
    if (ours && set->second->express) set->second->express->Settle(one.slot, one.round);
  }
  OnDeparture(from);
}

}  // namespace hvd
