// SPDX-License-Identifier: Apache-2.0
// Allreduces that go express: sent to all members at once, finished when everybody's part is here (see express.h).
#include <algorithm>

#include "collectives/kernels.h"
#include "core/control.h"
#include "core/engine.h"
#include "core/execution.h"

namespace hvd {
namespace {

// Whether a run of it counts as a round. All members must agree, whatever their settings: it is a matter of the agreed
// description alone.
constexpr size_t kMostBytes = size_t{64} << 10;

constexpr size_t kMostInLetterBox = 8 * InboxCell::kPayload;  // what is longer gets through the lanes faster

bool CountsRounds(const Request& request) {
  return request.kind == OpKind::kAllreduce && request.op != ReduceOp::kAdasum && request.group.empty() &&
         request.Bytes() <= kMostBytes;
}

Flat FlatOf(const std::byte* data, const Operation& operation) {
  Flat flat;
  flat.Add(const_cast<std::byte*>(data), operation.request.Bytes(), operation.wide);
  return flat;
}

}  // namespace

// For callers that wait for one tensor after the other. What comes in numbers is better fused; what the timeline or the
// tuner should see must pass the leader's log.
bool Engine::MayGoExpress(const ProcessSet& set, const Operation& operation) const {
  const size_t bytes = operation.request.Bytes() * (set.ranks().size() - 1);
  const size_t most = parts_.settings.express_bytes;
  return set.express && operation.awaited && drained_.size() == 1 &&
         bytes <= (set.all_in_memory() ? std::min(most, kMostInLetterBox) : most) && CountsRounds(operation.request) &&
         !set.joined && !timeline() && (!parts_.settings.autotune || tuned_.final.load(kRelaxed));
}

void Engine::SendExpress(ProcessSet& set, std::unique_ptr<Operation> operation, uint32_t slot) {
  const Request& request = operation->request;
  const control::Part part{slot, set.express->Round(slot), set.applied};
  operation->slot = part.slot;
  operation->round = part.round;
  std::string message = control::EncodeExpress(set, part);
  const size_t header = message.size();
  message.resize(header + request.Bytes());
  Gather(FlatOf(operation->input, *operation), 0, request.Bytes(), request.dtype, request.prescale,
         reinterpret_cast<std::byte*>(&message[header]));
  for (int rank : set.ranks()) {
    if (rank != parts_.identity.rank) mailbox_.Send(rank, message);
  }
  const std::string name = request.name;
  set.pending[name] = std::move(operation);
  OnPart(set, set.me(), part, std::string_view(message).substr(header));
}

void Engine::OnExpress(ProcessSet& set, int from, std::string_view body) {
  control::Part part;
  const int member = set.IndexOf(from);
  if (member < 0 || !set.express || !control::DecodeExpress(&body, &part)) {
    return Abort(from, "it sent a part of an allreduce that makes no sense");
  }
  // Of a slot that it knew and we do not, one may still come to know; if we know all that it knew, it is gone for good.
  const bool certain = set.leads() || part.seen <= set.applied;
  if (!certain || set.known.count(part.slot)) return OnPart(set, member, part, body);
  if (set.leads()) set.coordinator->OnReady(member, part.slot, part.seen);
}

void Engine::OnPart(ProcessSet& set, int member, const control::Part& part, std::string_view data) {
  if (!set.express->Add(part.slot, part.round, static_cast<size_t>(member), part.seen, data)) return;
  if (part.round != set.express->Round(part.slot)) return;
  if (set.leads()) HearPart(set, member, part.slot, part.seen);
  FinishExpress(set, part.slot);
}

void Engine::HearPart(ProcessSet& set, int member, uint32_t slot, uint64_t seen) {
  const Request& request = set.known[slot].request;
  set.last_heard[member] = request.name;
  // Others may not know that a timeline is on here: then it is the leader's word after all that decides.
  if (Timeline* shown = timeline()) shown->Ready(set.id(), request, set.ranks()[member]);
  set.coordinator->OnReady(member, slot, seen, true);
}

void Engine::FinishExpress(ProcessSet& set, uint32_t slot) {
  auto known = set.known.find(slot);
  if (known == set.known.end() || !set.express->Complete(slot, &parts_of_all_)) return;
  std::unique_ptr<Operation> operation = TakePending(set, known->second.request.name);
  if (!operation) return;  // it failed when the leader left
  const Request& request = operation->request;
  const size_t bytes = request.Bytes();
  std::vector<const void*> sources;
  for (std::string_view part : parts_of_all_) {
    sources.push_back(part.data());
    if (part.size() == bytes) continue;
    set.pending[request.name] = std::move(operation);  // to fail with the rest
    return Abort(-1, "a part of '" + known->second.request.name + "' has the wrong size");
  }
  std::vector<std::byte> narrow(operation->wide ? bytes : 0);
  std::byte* result = operation->wide ? narrow.data() : operation->output;
  Combine(ReductionOf(request, sources.size()), result, nullptr, sources.data(), static_cast<int>(sources.size()),
          bytes / SizeOf(request.dtype));
  if (operation->wide) Scatter(result, FlatOf(operation->output, *operation), 0, bytes, request.dtype);
  ++express_runs_;
  set.express->End(slot);
  Finish(std::move(operation), Status::Ok());
  AfterRound(set, slot);
}

// A record ran it, by the word of the leader.
void Engine::EndRound(ProcessSet& set, const Entry& entry) {
  if (!set.express || !CountsRounds(entry.request)) return;
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
  return std::any_of(set.pending.begin(), set.pending.end(),
                     [](const auto& item) { return item.second->round != kNoRound; });
}

// The leader's: a member speaks of a tensor whose part it has sent, so it has its result and means the next round.
bool Engine::IsEarly(const ProcessSet& set, int member, uint32_t slot) {
  return set.express && set.express->Has(slot, static_cast<size_t>(member));
}

void Engine::NumberErrors(const ProcessSet& set, Record* record) {
  if (record->kind != RecordKind::kError || !set.express) return;
  for (const std::string& name : record->names) {
    auto slot = set.slot_of.find(name);
    const bool counts = slot != set.slot_of.end() && CountsRounds(set.known.at(slot->second).request);
    record->rounds.push_back(counts ? set.express->Round(slot->second) : kNoRound);
  }
}

void Engine::ApplyError(ProcessSet& set, const Record& record) {
  for (size_t i = 0; i < record.names.size(); ++i) {
    const uint32_t round = i < record.rounds.size() ? record.rounds[i] : kNoRound;
    auto waiting = set.pending.find(record.names[i]);
    // The run before may still lack a part that all others have: it is not the one that failed.
    const bool earlier = waiting != set.pending.end() && round != kNoRound && waiting->second->round < round;
    auto slot = set.slot_of.find(record.names[i]);
    if (!earlier) {
      if (auto operation = TakePending(set, record.names[i])) Finish(std::move(operation), record.error);
    }
    if (round == kNoRound || slot == set.slot_of.end()) continue;
    set.express->EndBy(slot->second, round);
    AfterRound(set, slot->second);
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
  if (!control::DecodeBye(&body, &finished)) return Abort(from, "it left with words that make no sense");
  for (const control::Finished& one : finished) {
    auto set = sets_.find(one.set);
    const bool ours = set != sets_.end() && set->second->epoch() == one.epoch && set->second->ranks()[0] == from;
    if (ours && set->second->express) set->second->express->Settle(one.slot, one.round);
  }
  OnDeparture(from);
}

}  // namespace hvd
