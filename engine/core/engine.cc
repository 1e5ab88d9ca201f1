// SPDX-License-Identifier: Apache-2.0
#include "core/engine.h"

#include <algorithm>
#include <utility>

#include "agreement/control.h"
#include "core/shown.h"

namespace hvd {
namespace {

constexpr uint64_t kRoundsBeforeRinging = 512;

}  // namespace

Engine::Engine(const Parts& parts)
    : parts_(parts),
      mailbox_(parts.identity.rank, parts.arena ? &reinterpret_cast<ArenaHead*>(parts.arena->at(0))->inbox : nullptr,
               parts.neighbours, parts.connector),
      stack_teller_(parts.stack_teller) {
  around_ = {&parts_.settings,  parts_.identity.rank, &parts_.host_of_rank,        parts_.arena,
             parts_.neighbours, parts_.connector,     [this] { WakeNeighbours(); }};
  messages_ = std::make_unique<PointToPoint>(
      around_, &mailbox_,
      [this](std::unique_ptr<Operation> operation, const Status& status) { Finish(std::move(operation), status); });
  std::vector<int> everybody(parts_.identity.size);
  std::vector<int64_t> regions(parts_.identity.size, -1);
  for (int rank = 0; rank < parts_.identity.size; ++rank) everybody[rank] = rank;
  if (parts_.arena) {
    regions[parts_.identity.rank] = reinterpret_cast<ArenaHead*>(parts_.arena->at(0))->world_region;
  }
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (neighbour.arena) regions[neighbour.rank] = neighbour.head()->world_region;
  }
  parts_.submissions->Register(kGlobalSet, everybody);
  sets_[kGlobalSet] = std::make_unique<ProcessSet>(kGlobalSet, 0, everybody, regions, around_);
  tuned_.Store(InitialTuning(parts_.settings));
  ProcessSet& global = *sets_[kGlobalSet];
  if (parts_.settings.autotune && global.leads()) {
    tuning_ = std::make_unique<TuningSession>(parts_.settings, global.inside() != nullptr);
  }
  for (const auto& [id, set] : sets_) {
    if (set->tree().parent >= 0) mailbox_.Expect(set->ranks()[set->tree().parent], true);
    for (int child : set->tree().children) mailbox_.Expect(set->ranks()[child], true);
  }
}

Engine::~Engine() = default;

void Engine::WakeNeighbours() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (neighbour.arena) neighbour.bell.RingIfHungry();
  }
}

bool Engine::Progress(bool drain, bool thorough) {
  bool moved = drain && Drain();
  const bool eager = drain && mailbox_.has_links() && AwaitsAgreement();
  Hear(eager, &moved);
  if (mailbox_.has_links() || parts_.identity.size > 1) {
    // Dials and handshakes are rare: look at them now and then, and whenever the poller woke us.
    if ((++rounds_ & 63) == 0 || thorough) moved |= parts_.connector->Progress();
    if (mailbox_.has_links() && ((rounds_ & (eager ? 63 : 3)) == 0 || thorough)) OnEvents(parts_.poller->Collect());
    moved |= mailbox_.Flush();
  }
  for (auto it = sets_.begin(); it != sets_.end();) {
    const int id = it->first;
    ProcessSet& set = *it->second;
    if (!set.postponed.empty()) AnnouncePostponed(set);
    if (set.coordinator) moved |= Decide(set);
    if (set.delivery) moved |= FinishDelivery(set);
    moved |= Step(set);
    it = sets_.upper_bound(id);  // the global set's records add and remove others
  }
  moved |= messages_->Step();
  CheckLinks();
  if (stack_teller_.asked()) ReportStack();
  if (thorough || (rounds_ & 1023) == 0) Housekeep();
  // A peer between two calls of its own will read what came by itself; only one that stays away is worth a ring.
  rounds_unrung_ = mailbox_.unrung() ? rounds_unrung_ + 1 : 0;
  if (thorough || rounds_unrung_ >= kRoundsBeforeRinging) mailbox_.RingUnread();
  return moved || mailbox_.unread() || !spoke_.empty();
}

Engine::Clock::duration Engine::MaximumSleep() const {
  using std::chrono::milliseconds;
  if (broken_since_ != Clock::time_point()) return std::min(kGrace, Heartbeats::kPeriod);
  if (mailbox_.congested()) return std::chrono::microseconds(200);
  if (stack_teller_.asked()) return std::chrono::milliseconds(10);
  milliseconds housekeeping = Heartbeats::kPeriod;
  if (aborted_.ok()) {
    const auto left = std::chrono::ceil<milliseconds>(next_housekeeping_ - Clock::now());
    housekeeping = std::clamp(left, milliseconds(1), housekeeping);
  }
  return std::min(housekeeping, parts_.connector->NextWakeup());  // in milliseconds: its maximum overflows finer units
}

bool Engine::Hungry() const {
  return messages_->Busy() ||
         std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return item.second->busy(); });
}

bool Engine::AwaitsAgreement() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return !item.second->pending.empty(); });
}

void Engine::OnEvents(const std::vector<int>& descriptors) {
  if (descriptors.empty()) return;
  parts_.connector->Progress();
  for (int fd : descriptors) {
    mailbox_.OnEvent(fd);
    for (Neighbour& neighbour : parts_.neighbours->all()) {
      if (neighbour.life_line.fd() == fd) spoke_.push_back(&neighbour);
    }
  }
}

std::vector<std::shared_ptr<Handle>> Engine::TakeFinished() {
  std::vector<std::shared_ptr<Handle>> taken;
  taken.swap(finished_);
  return taken;
}

// ---- from this rank's callers to the leader

bool Engine::Drain() {
  if (parts_.submissions->empty()) return false;
  parts_.submissions->TakeAll(&drained_);
  if (Timeline* shown = timeline()) shown->Cycle();
  for (auto& operation : drained_) {
    auto set = sets_.find(operation->process_set);
    const OpKind kind = operation->request.kind;
    if (!aborted_.ok()) {
      Finish(std::move(operation), aborted_);
    } else if (kind == OpKind::kSend || kind == OpKind::kReceive) {
      const int peer = operation->request.root;
      if (departed_.count(peer)) {
        Finish(std::move(operation), ShutDown(peer));
      } else {
        messages_->Start(std::move(operation));
      }
    } else if (set == sets_.end()) {
      Finish(std::move(operation), Status::Invalid("its process set was removed meanwhile"));
    } else if (!set->second->closed.ok()) {
      Finish(std::move(operation), set->second->closed);
    } else {
      Announce(*set->second, std::move(operation));
    }
  }
  drained_.clear();
  FlushReady();
  return true;
}

void Engine::Announce(ProcessSet& set, std::unique_ptr<Operation> operation) {
  Request& request = operation->request;
  if (request.kind == OpKind::kAddProcessSet) {
    const bool member =
        std::find(request.splits.begin(), request.splits.end(), parts_.identity.rank) != request.splits.end();
    Status status;
    const size_t bytes = ProcessSet::RegionBytes(parts_.settings, static_cast<int>(request.splits.size()));
    // No room means sockets for this set, not failure.
    const int64_t region = parts_.arena && member ? parts_.arena->Reserve(bytes, &status) : -1;
    request.splits.insert(request.splits.begin(), region);
  }
  if (request.kind == OpKind::kAllreduce && request.op != ReduceOp::kAdasum && set.all_in_memory() &&
      operation->input == operation->output && !operation->wide) {
    request.place = parts_.arena->PlaceOf(operation->input, request.Bytes(), &operation->pin);
  }
  if (request.kind == OpKind::kJoin) {
    if (HasExpress(set)) return set.postponed.push_back(std::move(operation));
    set.joined = true;
  }
  if (Timeline* shown = timeline()) shown->Ready(set.id(), request, parts_.identity.rank);
  const Entry* known = set.Known(request.name);
  const bool cached = known && known->request == request;
  if (cached && MayGoExpress(set, *operation) && SendExpress(set, &operation, known->slot)) return;
  if (cached && set.leads()) {
    set.coordinator->OnReady(set.me(), known->slot, set.applied);
  } else if (cached) {
    control::AddSlot(&ready_[set.id()], known->slot);
  } else if (set.leads()) {
    set.coordinator->OnRequest(set.me(), request);
  } else {
    FlushReady();  // the leader hears what was submitted first, first: above all before a join
    mailbox_.Send(set.ranks()[set.tree().parent], control::EncodeRequest(set.tag(), set.me(), request));
  }
  if (set.leads()) set.last_heard[0] = request.name;
  set.pending.Add(std::move(operation));
}

void Engine::FlushReady() {
  for (auto& [id, slots] : ready_) {
    const ProcessSet& set = *sets_[id];
    if (!slots.empty())
      mailbox_.Send(set.ranks()[set.tree().parent], control::EncodeReady(set.tag(), set.me(), set.applied, slots));
    slots.clear();
  }
}

// ---- between the ranks

void Engine::OnMessage(int from, std::string_view message) {
  std::string_view body = message;
  control::Header header;
  if (!control::Decode(&body, &header)) return Lose(from, "it sent a malformed control message");
  if (header.type == control::Type::kPing) return;  // hearing it was all
  if (header.type == control::Type::kBye) return OnBye(from, body);
  if (header.type == control::Type::kAbort) {
    int32_t lost = -1;
    std::string why;
    if (control::DecodeAbort(&body, &lost, &why)) Abort(lost, why);
    return;
  }
  if (header.type == control::Type::kOffer || header.type == control::Type::kAccept) {
    const bool clear =
        header.type == control::Type::kOffer ? messages_->OnOffer(from, body) : messages_->OnAccept(from, body);
    if (!clear) Lose(from, "it sent a malformed point-to-point message");
    return;
  }
  auto set = sets_.find(header.set);
  if (set == sets_.end() || set->second->epoch() != header.epoch) {
    // The set's birth is still on its way to us, or its death has overtaken the message.
    if (header.epoch > newest_epoch_) early_.emplace_back(from, message);
    return;
  }
  OnSetMessage(*set->second, from, message, body);
}

void Engine::OnSetMessage(ProcessSet& set, int from, std::string_view whole, std::string_view body) {
  switch (control::TypeOf(whole)) {
    case control::Type::kExpress:
    case control::Type::kExpressPlace:
      return OnExpress(set, from, body, control::TypeOf(whole) == control::Type::kExpressPlace);
    case control::Type::kExpressGone:
      return OnGoneParts(set, from, body);
    case control::Type::kReady:
    case control::Type::kRequest:
      return OnReports(set, whole, body);
    case control::Type::kRecord: {
      SendDown(set, whole);
      Record record;
      if (!Decode(&body, &record)) return Lose(set.ranks()[0], "the leader sent a malformed record");
      return Apply(set, std::move(record));
    }
    case control::Type::kGone:
      return OnGoneMember(set, whole, body);
    case control::Type::kStall:
      return OnStall(set, whole, body);
    case control::Type::kStack:
      return OnStack(set, whole, body);
    default:
      return;
  }
}

void Engine::OnReports(ProcessSet& set, std::string_view whole, std::string_view body) {
  if (!set.leads()) {
    if (set.closed.ok()) mailbox_.Send(set.ranks()[set.tree().parent], whole);
    return;
  }
  control::Report report;
  if (!control::DecodeReport(control::TypeOf(whole), &body, &report) || report.member >= set.ranks().size()) {
    return Abort(-1, "a member of process set " + std::to_string(set.id()) + " sent a malformed report");
  }
  if (Timeline* shown = timeline()) ShowReport(shown, set, report);
  const int member = static_cast<int>(report.member);
  for (uint32_t slot : report.slots) {
    if (IsEarly(set, member, slot)) {
      set.express->Postpone(slot, {report.member, report.seen, false, std::nullopt});
    } else {
      set.coordinator->OnReady(member, slot, report.seen);
    }
  }
  if (!report.slots.empty()) {
    auto known = set.known.find(report.slots.back());
    if (known != set.known.end()) set.last_heard[report.member] = known->second->request.name;
  }
  if (!report.has_request) return;
  set.last_heard[report.member] = report.request.name;
  const Entry* known = set.Known(report.request.name);
  if (known && IsEarly(set, member, known->slot)) {
    set.express->Postpone(known->slot, {report.member, report.seen, false, std::move(report.request)});
  } else {
    set.coordinator->OnRequest(member, report.request);
  }
}

bool Engine::Decide(ProcessSet& set) {
  std::vector<Record> records = set.coordinator->Decide();
  for (Record& record : records) {
    NumberErrors(set, &record);
    if (record.kind == RecordKind::kBatch) set.last_batch = record.sequence;
    Publish(set, record);
    Apply(set, std::move(record));
  }
  return !records.empty();
}

void Engine::Publish(ProcessSet& set, const Record& record) {
  if (set.tree().children.empty()) return;
  SendDown(set, control::EncodeRecord(set.tag(), record));
}

void Engine::SendDown(const ProcessSet& set, std::string_view message) {
  for (int child : set.tree().children) {
    if (!departed_.count(set.ranks()[child])) mailbox_.Send(set.ranks()[child], message);
  }
}

void Engine::Finish(std::unique_ptr<Operation> operation, const Status& status) {
  if (Timeline* shown = timeline()) shown->Finished(operation->process_set, operation->request, status.ok());
  const std::shared_ptr<Handle> handle = std::move(operation->handle);
  parts_.submissions->Finished(std::move(operation));  // first: whoever waits may submit the name again
  if (!status.ok() && handle->status.ok()) handle->status = status;
  if (--handle->left > 0) return;
  finished_.push_back(handle);
  handle->done.store(true, std::memory_order_release);
}

}  // namespace hvd
