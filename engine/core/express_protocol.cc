// SPDX-License-Identifier: Apache-2.0
#include "core/express_protocol.h"

#include <algorithm>

#include "collectives/hierarchical_reducescatter.h"
#include "core/express_run.h"

namespace hvd {
namespace {

// Limits for parts. Over TCP, the saved round trips make parts up to kFurther times express_bytes worthwhile, or up to
// kFurthest times if the bytes are only moved and every member needs them. In shared memory, sending more than one
// inbox cell takes longer than reading a peer's buffer.
constexpr size_t kFurther = 16, kFurthest = 32;
constexpr size_t kMostInCell = InboxCell::kPayload - control::kHeaderBytes - sizeof(control::Part);

uint32_t UnitOf(const ProcessSet& set, const std::byte* place) {
  return static_cast<uint32_t>(static_cast<size_t>(place - set.arena_of(set.me())) / control::Place::kUnit);
}

}  // namespace

ExpressProtocol::ExpressProtocol(const ProcessSet& set, MemberState* state, Leader* leader, const Services* services)
    : set_(set), state_(*state), leader_(leader), services_(*services) {
  if (!set_.express_heads().empty()) {
    memory_ = std::make_unique<ExpressMemory>(set_.express_heads(), static_cast<size_t>(set_.me()));
  }
  if (!set_.close_knit()) return;
  for (const bool near : {true, false}) {
    for (size_t j = 0; j < set_.ranks().size(); ++j) {
      const bool other = static_cast<int>(j) != set_.me();
      if (other && (set_.arena_of(static_cast<int>(j)) != nullptr) == near) others_.push_back(j);
    }
  }
  ledger_ = std::make_unique<Express>(set_.ranks().size(), [this](size_t member, uint64_t number) {
    if (memory_) memory_->Gone(member, number);
  });
}

ExpressRun ExpressProtocol::RunOf(const Entry& entry) const {
  const int root = entry.request.kind == OpKind::kBroadcast ? set_.IndexOf(entry.request.root) : -1;
  const auto* hosts = set_.members_by_host();
  if (entry.request.kind == OpKind::kReducescatter) {  // as in PrepareReducescatter
    const HostGrid* grid = set_.grid_for_sums();
    hosts = grid && HierarchicalReducescatter::Fits(*grid) ? &grid->members : nullptr;
  }
  ExpressRun run(entry, set_.ranks().size(), static_cast<size_t>(set_.me()), root, hosts);
  if (set_.relays().any() && run.MostBytes() <= Relays::kMostBytes) run.Relay();
  return run;
}

bool ExpressProtocol::IsToldByUs(const ExpressRun& run, size_t member) const {
  return !run.relayed() || set_.relays().Tells(static_cast<int>(member));
}

bool ExpressProtocol::IsPushed(const ExpressRun& run) const { return set_.all_in_memory() && run.IsPushed(); }

bool ExpressProtocol::under_way() const {
  return delivery_ || state_.pending().Any([](const Operation& operation) { return operation.round != kNoRound; });
}

// ---- sending our part

// The form of the part follows from what all members know, so that all use the same form, unless one of them has no
// free buffer.
bool ExpressProtocol::Send(std::unique_ptr<Operation>* operation, uint32_t slot) {
  const Settings& settings = *services_.settings;
  const Entry& entry = *state_.cache().Find(slot);
  const ExpressRun run = RunOf(entry);
  if (!run.CountsAsRound()) return false;
  const control::Part part{slot, ledger_->Round(slot), state_.applied()};
  const size_t carried = run.MostBytes() * (set_.ranks().size() - 1);  // bytes to all others, or from all others
  if (!set_.all_in_memory()) {
    const OpKind kind = entry.request.kind;
    const bool shares = kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
    const size_t times = kind == OpKind::kBroadcast || kind == OpKind::kAllgather ? kFurthest : kFurther;
    if ((shares ? run.MostBytes() : carried) > times * settings.express_bytes) return false;
    CarryPart(run, std::move(*operation), part);
    return true;
  }
  if (IsPushed(run)) return OfferOutput(run, operation, part);
  if (run.MostBytes() <= kMostInCell) {
    CarryPart(run, std::move(*operation), part);
    return true;
  }
  // For a longer allreduce it is faster if each member sums a share.
  const size_t most_read = std::max(settings.small_bytes, settings.express_bytes);
  if (entry.request.kind == OpKind::kAllreduce && carried > most_read) return false;
  return ShowPart(run, operation, part);
}

// Send our bytes in messages, to each member the bytes that it needs.
void ExpressProtocol::CarryPart(const ExpressRun& run, std::unique_ptr<Operation> operation,
                                const control::Part& part) {
  if (run.MostBytes() > kMostInCell) return CarryLongPart(run, std::move(operation), part);
  const auto me = static_cast<size_t>(set_.me());
  const size_t bytes = run.BytesFrom(me);
  std::string whole = control::EncodeExpress(set_.tag(), part, bytes);
  const size_t header = whole.size();
  whole.resize(header + bytes);
  std::byte* const data = reinterpret_cast<std::byte*>(whole.data()) + header;
  run.Write(*operation, data);
  for (const size_t j : others_) {
    if (!IsToldByUs(run, j)) continue;
    const ExpressRun::Share share = run.CarriedTo(me, j);
    if (share.bytes == bytes) {
      services_.mailbox->Send(set_.ranks()[j], whole, {}, bytes);
    } else {
      const std::string ours = whole.substr(0, header) + whole.substr(header + share.begin, share.bytes);
      services_.mailbox->Send(set_.ranks()[j], ours, {}, share.bytes);
    }
  }
  AwaitParts(std::move(operation), part, {data, bytes, 0});
  ledger_->Keep(part.slot, part.round, me);
}

// Send a long part without copying it into messages. Members on our host read it from a shared buffer instead.
void ExpressProtocol::CarryLongPart(const ExpressRun& run, std::unique_ptr<Operation> operation,
                                    const control::Part& part) {
  const auto me = static_cast<size_t>(set_.me());
  const size_t bytes = run.BytesFrom(me);
  std::byte* const buffer = BufferFor(run.MostBytes());
  const std::byte* data = buffer ? buffer : run.InInput(*operation);
  std::vector<std::byte> written;
  if (!data) {
    written.resize(bytes);
    data = written.data();
  }
  if (buffer || !written.empty()) run.Write(*operation, const_cast<std::byte*>(data));
  const uint64_t number = buffer ? memory_->NextNumber(true) : 0;
  if (buffer) TellPlace(part, number, buffer);
  const std::string header = control::EncodeExpress(set_.tag(), part, 0);
  for (size_t j = 0; j < set_.ranks().size(); ++j) {
    if (j == me || (buffer && set_.express_heads()[j]) || !IsToldByUs(run, j)) continue;
    const ExpressRun::Share share = run.CarriedTo(me, j);
    services_.mailbox->Send(set_.ranks()[j], header, {reinterpret_cast<const char*>(data) + share.begin, share.bytes});
  }
  // The result may overwrite the input part by part: a reducescatter may write into a slice of its input.
  const std::byte* const output = operation->output;
  const bool apart = !output || output >= operation->input + bytes || output + bytes <= operation->input;
  // If the operation fails, its caller may free the input while we still have to forward the part.
  const bool lies_still = buffer || (written.empty() && apart && !run.relayed());
  AwaitParts(std::move(operation), part, {data, buffer ? Express::kInPlace : bytes, number});
  if (!lies_still) ledger_->Keep(part.slot, part.round, me);
}

// Return a free shared buffer for our part, or null if the bytes have to be sent to the members on our host.
std::byte* ExpressProtocol::BufferFor(size_t bytes) {
  if (!memory_ || bytes > ExpressMemory::kBufferBytes) return nullptr;
  std::byte* const buffer = memory_->FreeBuffer();
  // Other members may be short of buffers too, because parts of several tensors crossed. Report which of their parts
  // are no longer needed, so that they can reuse the buffers.
  if (!buffer) TellGone();
  return buffer;
}

// Put our bytes into a shared buffer, from which all others copy them.
bool ExpressProtocol::ShowPart(const ExpressRun& run, std::unique_ptr<Operation>* operation,
                               const control::Part& part) {
  std::byte* const buffer = BufferFor(run.MostBytes());
  if (!buffer) return false;
  run.Write(**operation, buffer);
  const uint64_t number = memory_->NextNumber(true);
  TellPlace(part, number, buffer);
  AwaitParts(std::move(*operation), part, {buffer, Express::kInPlace, number});
  return true;
}

// Offer our output in shared memory, so that all others write their bytes into it.
bool ExpressProtocol::OfferOutput(const ExpressRun& run, std::unique_ptr<Operation>* operation,
                                  const control::Part& part) {
  // Offer one output at a time, because a single counter shows the others what we have written.
  if (delivery_ || !ledger_->IsOver(pushed_.first, pushed_.second)) return false;
  if (set_.single_copy_bytes() == SIZE_MAX) return false;
  std::byte* const output = run.PlaceForPushes(operation->get(), set_.own_arena());
  if (!output) return false;
  const uint64_t number = memory_->NextNumber(false);
  TellPlace(part, number, output);
  pushed_ = {part.slot, part.round};
  AwaitParts(std::move(*operation), part, {output, Express::kInPlace, number});
  return true;
}

void ExpressProtocol::TellPlace(const control::Part& part, uint64_t number, const std::byte* place) {
  control::Place told{number, 0, UnitOf(set_, place)};
  for (size_t j = 0; j < set_.ranks().size(); ++j) {
    if (static_cast<int>(j) == set_.me() || !set_.express_heads()[j]) continue;
    told.gone_up_to = memory_->GoneUpTo(j);
    services_.mailbox->Send(set_.ranks()[j], control::EncodeExpress(set_.tag(), part, told));
  }
}

void ExpressProtocol::TellGone() {
  for (size_t j = 0; j < set_.ranks().size(); ++j) {
    if (static_cast<int>(j) == set_.me() || !set_.express_heads()[j]) continue;
    services_.mailbox->Send(set_.ranks()[j], control::EncodeExpressGone(set_.tag(), memory_->GoneUpTo(j)));
  }
}

void ExpressProtocol::AwaitParts(std::unique_ptr<Operation> operation, const control::Part& part,
                                 const Express::Piece& own) {
  operation->slot = part.slot;
  operation->round = part.round;
  state_.pending().Add(std::move(operation));
  state_.Announce();
  AddPart(set_.me(), part, own);
}

// ---- receiving parts

Status ExpressProtocol::OnGone(int from, std::string_view body) {
  uint64_t up_to = 0;
  const int member = set_.IndexOf(from);
  if (member < 0 || !set_.arena_of(member) || !control::DecodeExpressGone(&body, &up_to)) {
    return Status::Failed("it sent a malformed message about parts", from);
  }
  memory_->Acknowledged(static_cast<size_t>(member), up_to);
  return Status::Ok();
}

Status ExpressProtocol::OnPart(int from, std::string_view body, bool in_place) {
  control::Part part;
  control::Place place;
  const int member = set_.IndexOf(from);
  const bool clear = member >= 0 && ledger_ && control::DecodeExpress(&body, &part);
  if (!clear || (in_place && (!set_.arena_of(member) || !control::DecodePlace(&body, &place)))) {
    return Status::Failed("it sent a malformed part of a collective", from);
  }
  Express::Piece piece{reinterpret_cast<const std::byte*>(body.data()), body.size(), 0};
  if (in_place) {
    memory_->Acknowledged(static_cast<size_t>(member), place.gone_up_to);
    memory_->Came(static_cast<size_t>(member), place.number);
    piece = {set_.arena_of(member) + place.unit * control::Place::kUnit, Express::kInPlace, place.number};
  } else {
    services_.mailbox->CountAsData(piece.size);
  }
  if (IsKnownOrToCome(part)) {
    const Status status = AddPart(member, part, piece) ? Finish(part.slot) : Status::Ok();
    // Copy the bytes unless the round is over, because they are part of the message, which ends here.
    ledger_->Keep(part.slot, part.round, static_cast<size_t>(member));
    return status;
  }
  if (in_place) memory_->Gone(static_cast<size_t>(member), place.number);
  if (leader_) leader_->coordinator().OnReady(member, part.slot, part.seen);
  return Status::Ok();
}

// Return true if the part's slot is known or may still become known. If we have applied all records that the sender had
// applied, an unknown slot has been evicted.
bool ExpressProtocol::IsKnownOrToCome(const control::Part& part) const {
  const bool certain = leader_ || part.seen <= state_.applied();
  return !certain || state_.cache().Find(part.slot);
}

Status ExpressProtocol::OnOthers(int from, std::string_view whole, std::string_view body) {
  control::Passed passed;
  const int teller = set_.IndexOf(from);
  bool clear = teller >= 0 && ledger_ && control::DecodeExpressOthers(&body, &passed);
  std::vector<std::pair<control::Other, std::string_view>> others;
  size_t data = 0;
  while (clear && !body.empty()) {
    auto& [other, bytes] = others.emplace_back();
    clear =
        control::DecodeOther(&body, &other, &bytes) && set_.relays().MayTell(teller, static_cast<int>(other.member));
    data += bytes.size();
  }
  if (!clear) return Status::Failed("it passed on malformed parts of a collective", from);
  services_.mailbox->CountAsData(data);
  for (int mate : set_.relays().Mates()) {
    services_.mailbox->Send(set_.ranks()[static_cast<size_t>(mate)], whole, {}, data);
  }
  bool current = false;
  for (const auto& [other, bytes] : others) {
    const control::Part part{passed.slot, passed.round, other.seen};
    if (!IsKnownOrToCome(part)) continue;
    const Express::Piece piece{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), 0};
    current |= AddPart(static_cast<int>(other.member), part, piece);
  }
  const Status status = current ? Finish(passed.slot) : Status::Ok();
  for (const auto& [other, bytes] : others) ledger_->Keep(passed.slot, passed.round, other.member);
  return status;
}

// Forward the parts of a member's host once all of them are here, to the members that this rank serves as a relay. This
// includes rounds later than ours, because others may be ahead. If we do not know the slot yet, our own part is still
// missing.
void ExpressProtocol::PassOn(int member, const control::Part& part) {
  const Relays& relays = set_.relays();
  if (!relays.any() || relays.AudienceFor(member).empty()) return;
  const Entry* known = state_.cache().Find(part.slot);
  if (!known || !ledger_->PartsOf(part.slot, part.round, relays.HostOf(member), &parts_of_host_)) return;
  const ExpressRun run = RunOf(*known);
  if (!run.relayed()) return;
  std::string message = control::EncodeExpressOthers(set_.tag(), {part.slot, part.round});
  size_t data = 0;
  for (const Express::Told& told : parts_of_host_) {
    if (!MakesSense(run, told.member, told.piece)) return;  // Finish will report this error when all parts are here
    const auto bytes = static_cast<uint32_t>(run.BytesFrom(told.member));
    control::AddOther(&message, {static_cast<uint32_t>(told.member), bytes, told.seen}, told.piece.data);
    data += bytes;
  }
  for (int to : relays.AudienceFor(member)) {
    services_.mailbox->Send(set_.ranks()[static_cast<size_t>(to)], message, {}, data);
  }
}

bool ExpressProtocol::AddPart(int member, const control::Part& part, const Express::Piece& piece) {
  if (!ledger_->Add(part.slot, part.round, static_cast<size_t>(member), part.seen, piece)) {
    if (leader_) leader_->coordinator().Skip(member);
    return false;
  }
  PassOn(member, part);
  if (part.round != ledger_->Round(part.slot)) return false;
  if (leader_) HearPart(member, part.slot, part.seen);
  return true;
}

void ExpressProtocol::HearPart(int member, uint32_t slot, uint64_t seen) {
  const Request& request = state_.cache().Find(slot)->request;
  leader_->Hear(static_cast<size_t>(member), request.name);
  // Other ranks may send parts although a timeline is written here. The leader then decides about the tensor, so the
  // timeline shows their parts as reports.
  if (Timeline* shown = services_.timeline->if_on()) shown->Ready(set_.id(), request, set_.ranks()[member]);
  leader_->coordinator().OnReady(member, slot, seen, true);
}

bool ExpressProtocol::MakesSense(const ExpressRun& run, size_t member, const Express::Piece& piece) const {
  if (piece.size != Express::kInPlace) {
    const bool ours = member == static_cast<size_t>(set_.me());
    const size_t expected = ours ? run.BytesFrom(member) : run.CarriedTo(member, static_cast<size_t>(set_.me())).bytes;
    return piece.size == expected && !IsPushed(run);
  }
  const auto offset = static_cast<size_t>(piece.data - set_.arena_of(static_cast<int>(member)));
  const size_t bytes = IsPushed(run) ? run.OutputBytes(member) : run.BytesFrom(member);
  return offset <= Arena::kExtent && bytes <= Arena::kExtent - offset;
}

Status ExpressProtocol::Finish(uint32_t slot) {
  const Entry* known = state_.cache().Find(slot);
  if (!known || !ledger_->Complete(slot, &parts_of_all_)) return Status::Ok();
  std::unique_ptr<Operation> operation = TakeWaiting(*known);
  if (!operation) return Status::Ok();  // the operation failed when the leader left
  const ExpressRun run = RunOf(*known);
  for (size_t j = 0; j < parts_of_all_.size(); ++j) {
    if (MakesSense(run, j, parts_of_all_[j])) continue;
    const std::string name = operation->request.name;
    state_.pending().Add(std::move(operation));  // so that it fails with the others
    return Status::Failed("a part of '" + name + "' is malformed");
  }
  ++services_.counters->express_runs;
  CountMemory(run);
  if (IsPushed(run)) {
    StartDelivery(run, std::move(operation), slot);
  } else {
    run.Assemble(operation.get(), parts_of_all_);
    services_.completions->Finish(std::move(operation), Status::Ok());
  }
  ledger_->End(slot);
  AfterRound(slot);
  const auto retired = std::find(retired_.begin(), retired_.end(), slot);
  if (retired == retired_.end()) return Status::Ok();
  retired_.erase(retired);
  Forget(slot);
  return Status::Ok();
}

// Count the bytes that this rank reads from peers' buffers or writes into their outputs. The mailbox counts bytes that
// arrive in messages.
void ExpressProtocol::CountMemory(const ExpressRun& run) {
  const auto me = static_cast<size_t>(set_.me());
  uint64_t read = 0, written = 0;
  for (size_t j = 0; j < parts_of_all_.size(); ++j) {
    if (j == me || parts_of_all_[j].size != Express::kInPlace) continue;
    IsPushed(run) ? written += run.ShareOf(me, j).bytes : read += run.ShareOf(j, me).bytes;
  }
  if (read) services_.traffic->memory_read.Add(read);
  if (written) services_.traffic->memory_written.Add(written);
}

// If the name belongs to a newer call by now, the operation of this round has failed and its parts are not needed.
std::unique_ptr<Operation> ExpressProtocol::TakeWaiting(const Entry& known) {
  std::unique_ptr<Operation> operation = state_.pending().Take(known.request.name);
  const bool meant = operation && operation->slot == known.slot && operation->round == ledger_->Round(known.slot);
  if (meant || !operation) return operation;
  state_.pending().Add(std::move(operation));
  return nullptr;
}

void ExpressProtocol::StartDelivery(const ExpressRun& run, std::unique_ptr<Operation> operation, uint32_t slot) {
  run.Push(*operation, parts_of_all_);
  memory_->Deliver(parts_of_all_[static_cast<size_t>(set_.me())].number);
  services_.neighbours->RingHungry();
  delivery_.emplace(Delivery{std::move(operation), slot, ledger_->Round(slot), {}});
  for (const Express::Piece& piece : parts_of_all_) delivery_->numbers.push_back(piece.number);
  ++services_.counters->single_copy_batches;
  Step();
}

// End the delivery when all members have written their bytes into our output.
bool ExpressProtocol::Step() {
  for (size_t j = 0; j < set_.ranks().size(); ++j) {
    const int rank = set_.ranks()[j];
    const bool left = services_.departures->departed(rank);  // a rank that has left has written all it ever will
    if (memory_->HasDelivered(j, delivery_->numbers[j])) continue;
    if (!left) return false;
    EndDelivery(services_.departures->ShutDown(rank));
    return true;
  }
  EndDelivery(Status::Ok());
  return true;
}

void ExpressProtocol::EndDelivery(const Status& status) {
  std::unique_ptr<Operation> operation = std::move(delivery_->operation);
  delivery_.reset();
  services_.completions->Finish(std::move(operation), status);
}

// ---- what the leader's log says

void ExpressProtocol::EndRound(const Entry& entry) {
  if (!ledger_ || !RunOf(entry).CountsAsRound()) return;
  ledger_->End(entry.slot);
  AfterRound(entry.slot);
}

void ExpressProtocol::EndRound(uint32_t slot, uint32_t round, const Status& failure) {
  if (!ledger_) return;
  const bool delivers = delivery_ && delivery_->slot == slot && delivery_->round == round;
  if (delivers) EndDelivery(failure);  // some member did not receive all parts
  ledger_->EndBy(slot, round);
  AfterRound(slot);
}

void ExpressProtocol::AfterRound(uint32_t slot) {
  if (!leader_) return;
  for (const Express::Report& report : ledger_->TakeCurrent(slot)) {
    const int member = static_cast<int>(report.member);
    if (report.express) {
      HearPart(member, slot, report.seen);
    } else if (report.request) {
      leader_->coordinator().OnRequest(member, *report.request);
    } else {
      leader_->coordinator().OnReady(member, slot, report.seen);
    }
  }
}

void ExpressProtocol::Evict(uint32_t slot, uint32_t ended) {
  const Entry* known = ledger_ ? state_.cache().Find(slot) : nullptr;
  std::unique_ptr<Operation> operation = known ? TakeWaiting(*known) : nullptr;
  if (!operation) return Forget(slot);
  const bool ends = operation->round < ended;
  if (!ends) {
    operation->slot = kNoSlot;
    operation->round = kNoRound;
  }
  state_.pending().Add(std::move(operation));
  if (!ends) return Forget(slot);
  state_.cache().ForgetName(slot);
  retired_.push_back(slot);
  ledger_->Settle(slot, ended);
}

void ExpressProtocol::Forget(uint32_t slot) {
  state_.cache().Evict(slot);
  if (ledger_) ledger_->Forget(slot);
}

void ExpressProtocol::AddRounds(Record* record) const {
  if (!ledger_) return;
  for (const uint32_t slot : record->evicted) record->rounds.push_back(ledger_->Round(slot));
  for (const std::string& name : record->names) {
    const Entry* known = state_.cache().Find(name);
    const bool counts = known && RunOf(*known).CountsAsRound();
    record->rounds.push_back(counts ? ledger_->Round(known->slot) : kNoRound);
  }
}

bool ExpressProtocol::HoldBack(int member, uint32_t slot, uint64_t seen, Request* request) {
  if (!ledger_ || !ledger_->Has(slot, static_cast<size_t>(member))) return false;
  Express::Report report{static_cast<size_t>(member), seen, false, std::nullopt};
  if (request) report.request = std::move(*request);
  ledger_->Postpone(slot, std::move(report));
  return true;
}

// ---- how rounds end when the leader leaves

void ExpressProtocol::AddFinished(std::vector<control::Finished>* finished) const {
  if (!leader_ || !ledger_) return;
  for (const auto& [slot, round] : ledger_->Rounds()) finished->push_back({set_.id(), set_.epoch(), slot, round});
}

void ExpressProtocol::Settle(uint32_t slot, uint32_t round) {
  if (ledger_) ledger_->Settle(slot, round);
}

bool ExpressProtocol::Settled(const Operation& operation) const {
  return operation.round != kNoRound && ledger_->Settled(operation.slot, operation.round);
}

void ExpressProtocol::Fail(const Status& status) {
  for (auto& operation : TakePostponed()) services_.completions->Finish(std::move(operation), status);
  if (delivery_) EndDelivery(status);
}

}  // namespace hvd
