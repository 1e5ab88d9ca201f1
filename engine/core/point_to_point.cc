// SPDX-License-Identifier: Apache-2.0
#include "core/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "agreement/control.h"
#include "base/wire.h"

namespace hvd {
namespace {

constexpr uint32_t kChannel = 0xfffffff0u;  // outside the range of process sets
constexpr size_t kMostSlotBytes = size_t{8} << 20;
constexpr size_t kToken = 1;  // bytes that the lane carries for a piece in a GPU's slot

int64_t TagOf(const Operation& operation) { return operation.request.splits[0]; }
size_t BytesOf(const Operation& operation) { return static_cast<size_t>(operation.request.shape[0]); }
bool IsOnGpu(const Operation& operation) { return operation.request.device >= 0; }
// Return true if the work that precedes the tensor on the caller's stream is done.
bool IsReady(const Operation& operation) { return !operation.ready || operation.ready->IsDone(); }

size_t BytesOf(const std::deque<MessageSlots::Piece>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), size_t{0},
                         [](size_t bytes, const MessageSlots::Piece& piece) { return bytes + piece.length; });
}

// Remove the first piece if the device is done with it.
bool PopDone(std::deque<MessageSlots::Piece>* pieces, size_t* length) {
  if (pieces->empty() || !pieces->front().mark->IsDone()) return false;
  *length = pieces->front().length;
  pieces->pop_front();
  return true;
}

LaneOptions OptionsOf(const Settings& settings) {
  LaneOptions options;
  options.members = 2;
  options.slot_bytes = settings.slot_bytes;
  options.slots = settings.slots;
  return options;
}

Status WrongSize(int64_t tag, uint64_t sent, uint64_t expected) {
  return Status::Mismatch("Mismatched message sizes: tag " + std::to_string(tag) + " was sent with " +
                          std::to_string(sent) + " bytes, but the receiver's buffer has " + std::to_string(expected));
}

}  // namespace

PointToPoint::PointToPoint(const Surroundings& around, Mailbox* mailbox, Completions* completions, const Log& log)
    : around_(around), mailbox_(mailbox), completions_(completions), log_(log) {}

PointToPoint::~PointToPoint() = default;

PointToPoint::Pair& PointToPoint::PairWith(int rank) {
  Pair& pair = pairs_[rank];
  if (pair.reserved || rank == around_.rank) return pair;
  pair.reserved = true;
  mailbox_->Expect(rank, false);
  Neighbour* neighbour = around_.neighbours->Find(rank);
  Status no_room;  // if there is no room, the pair uses sockets
  if (around_.arena && neighbour && neighbour->arena) {
    pair.my_region = around_.arena->Reserve(Lane::BytesNeeded(OptionsOf(*around_.settings)), &no_room);
  }
  return pair;
}

void PointToPoint::Finish(std::unique_ptr<Operation> operation, const Status& status) {
  completions_->Finish(std::move(operation), status);
}

// ---- from the caller's submission to the offer

// Queue the operation; the next step does the rest.
void PointToPoint::Start(std::unique_ptr<Operation> operation) {
  const int64_t tag = TagOf(*operation);
  Pair& pair = PairWith(operation->request.root);
  if (operation->request.kind == OpKind::kReceive) {
    pair.receives[tag].push_back(std::move(operation));
    pair.unmatched.insert(tag);
  } else {
    pair.unready[tag].push_back(std::move(operation));
  }
}

// Offer the ready tensors of a tag, in the order in which they were submitted.
void PointToPoint::OfferReady(int rank, Pair& pair, int64_t tag) {
  Queue& queue = pair.unready[tag];
  std::string card;
  while (!queue.empty() && IsReady(*queue.front()) && HasSlotsOut(rank, pair, *queue.front(), &card)) {
    const uint64_t id = ++last_id_, bytes = BytesOf(*queue.front());
    pair.offered[id] = std::move(queue.front());
    queue.pop_front();
    if (rank == around_.rank) {
      pair.offers[tag].push_back({id, bytes, ""});
      pair.unmatched.insert(tag);
    } else {
      mailbox_->Send(rank, control::EncodeOffer({id, tag, bytes, pair.my_region, card}));
    }
  }
  if (queue.empty()) pair.unready.erase(tag);
}

// Return true if the message should use slots. Few bytes are faster through host memory, unless the GPU runs the work
// of all ranks concurrently.
bool PointToPoint::WantsSlots(int rank, const Operation& send) const {
  const Settings& settings = *around_.settings;
  if (!IsOnGpu(send) || BytesOf(send) == 0 || settings.gpu_transport == kGpuStaged) return false;
  const Neighbour* const neighbour = around_.neighbours->Find(rank);
  if (rank == around_.rank || !neighbour || !neighbour->arena || !around_.arena) return false;
  return BytesOf(send) >= settings.gpu_staged_bytes || around_.devices->Use(send.request.device)->runs_together();
}

// Return true once it is decided whether the message uses slots. A pair has slots on one GPU in each direction; tensors
// on other GPUs go through host memory.
bool PointToPoint::HasSlotsOut(int rank, Pair& pair, const Operation& send, std::string* card) {
  card->clear();
  if (!WantsSlots(rank, send)) return true;
  if (!pair.slots_out) {
    const LaneOptions options = OptionsOf(*around_.settings);
    const size_t bytes = std::min<size_t>(around_.settings->gpu_slot_bytes, kMostSlotBytes);
    Device* const device = around_.devices->Use(send.request.device);
    pair.slots_out = MessageSlots::Make(around_.devices, device, options.slots, bytes);
  }
  if (!pair.slots_out->settled()) return false;
  const bool there = pair.slots_out->device()->ordinal() == send.request.device && pair.slots_out->why_not().empty();
  if (there) *card = pair.slots_out->card().Encode();
  return true;
}

// ---- from the offer to the choice of the path

bool PointToPoint::OnOffer(int from, std::string_view body) {
  control::Offer offer;
  MessageSlots::Card card;
  if (!control::DecodeOffer(&body, &offer)) return false;
  if (!offer.card.empty() && !MessageSlots::Card::Decode(offer.card, &card)) return false;
  Pair& pair = PairWith(from);
  pair.their_region = offer.region;
  pair.offers[offer.tag].push_back({offer.id, offer.bytes, std::move(offer.card)});
  pair.unmatched.insert(offer.tag);
  return true;
}

void PointToPoint::Match(int rank, Pair& pair, int64_t tag) {
  auto& offers = pair.offers[tag];
  auto& receives = pair.receives[tag];
  Way way = Way::kHost;
  while (!offers.empty() && !receives.empty()) {
    if (!IsReady(*receives.front()) || !HasSlotsIn(rank, pair, offers.front(), *receives.front(), &way)) return;
    const Offer offer = std::move(offers.front());
    std::unique_ptr<Operation> receive = std::move(receives.front());
    offers.pop_front();
    receives.pop_front();
    Accept(rank, pair, offer, std::move(receive), way);
  }
  if (offers.empty()) pair.offers.erase(tag);
  if (receives.empty()) pair.receives.erase(tag);
  pair.unmatched.erase(tag);
}

// Return true once it is decided which path the message takes.
bool PointToPoint::HasSlotsIn(int rank, Pair& pair, const Offer& offer, const Operation& receive, Way* way) {
  *way = IsOnGpu(receive) && BytesOf(receive) > 0 ? Way::kPinned : Way::kHost;
  if (*way == Way::kHost || offer.card.empty() || around_.settings->gpu_transport == kGpuStaged) return true;
  BuildLane(rank, pair);
  if (!pair.in_memory) return true;
  if (!pair.slots_in) {
    MessageSlots::Card card;
    MessageSlots::Card::Decode(offer.card, &card);
    Device* const device = around_.devices->Use(receive.request.device);
    pair.slots_in = MessageSlots::Map(around_.devices, device, card);
  }
  if (!pair.slots_in->settled()) return false;
  TellWay(rank, pair, pair.slots_in->why_not());
  const bool there = pair.slots_in->device()->ordinal() == receive.request.device && pair.slots_in->why_not().empty();
  if (there) *way = Way::kSlots;
  return true;
}

void PointToPoint::TellWay(int rank, Pair& pair, const std::string& why_not) {
  if (std::exchange(pair.told_way, true)) return;
  log_.Info([&] {
    return "messages from rank " + std::to_string(rank) +
           (why_not.empty() ? " go through the GPU's memory" : " go through host memory: " + why_not);
  });
}

void PointToPoint::Accept(int rank, Pair& pair, const Offer& offer, std::unique_ptr<Operation> receive, Way way) {
  const uint64_t expected = BytesOf(*receive);
  const bool fits = expected == offer.bytes;
  const Status status = fits ? Status::Ok() : WrongSize(TagOf(*receive), offer.bytes, expected);
  if (rank == around_.rank) {
    std::unique_ptr<Operation> send = std::move(pair.offered[offer.id]);
    pair.offered.erase(offer.id);
    if (!fits) {
      Finish(std::move(send), status);
      return Finish(std::move(receive), status);
    }
    const Way from = IsOnGpu(*send) && expected > 0 ? Way::kPinned : Way::kHost;
    pair.outgoing.push_back({std::move(send), from});
    pair.incoming.push_back({std::move(receive), way});
    return;
  }
  mailbox_->Send(rank, control::EncodeAccept({offer.id, expected, pair.my_region, way == Way::kSlots}));
  if (!fits) return Finish(std::move(receive), status);
  BuildLane(rank, pair);
  pair.incoming.push_back({std::move(receive), way});
}

bool PointToPoint::OnAccept(int from, std::string_view body) {
  control::Accept accept;
  if (!control::DecodeAccept(&body, &accept)) return false;
  Pair& pair = PairWith(from);
  auto found = pair.offered.find(accept.id);
  if (found == pair.offered.end()) return true;  // it failed here in the meantime
  if (accept.by_slots && !pair.slots_out) return false;
  std::unique_ptr<Operation> send = std::move(found->second);
  pair.offered.erase(found);
  pair.their_region = accept.region;
  if (accept.bytes != BytesOf(*send)) {
    const Status status = WrongSize(TagOf(*send), BytesOf(*send), accept.bytes);
    Finish(std::move(send), status);
    return true;
  }
  BuildLane(from, pair);
  const bool on_gpu = IsOnGpu(*send) && BytesOf(*send) > 0;
  pair.outgoing.push_back({std::move(send), !on_gpu ? Way::kHost : accept.by_slots ? Way::kSlots : Way::kPinned});
  return true;
}

void PointToPoint::BuildLane(int rank, Pair& pair) {
  if (pair.lane) return;
  LaneOptions options = OptionsOf(*around_.settings);
  options.me = around_.rank < rank ? 0 : 1;
  std::vector<LaneHead*> heads(2, nullptr);
  std::vector<StreamKey> keys(2);
  keys[1 - options.me] = {rank, kChannel, 0, 0, 0};
  Neighbour* neighbour = around_.neighbours->Find(rank);
  if (pair.my_region >= 0 && pair.their_region >= 0 && neighbour && neighbour->arena) {
    const size_t mine = static_cast<size_t>(pair.my_region), theirs = static_cast<size_t>(pair.their_region);
    heads[options.me] = reinterpret_cast<LaneHead*>(around_.arena->at(mine));
    heads[1 - options.me] = reinterpret_cast<LaneHead*>(neighbour->arena->at(theirs));
    pair.in_memory = true;
  }
  pair.lane = std::make_unique<Lane>(options, std::move(heads), std::move(keys), around_.connector, around_.changed);
}

// ---- transfer of the bytes

// Return true once a GPU's tensor has pinned memory, filled if the tensor is sent. Other tensors need none.
bool PointToPoint::HasPinned(Transfer& transfer) {
  const Operation& operation = *transfer.operation;
  if (transfer.way != Way::kPinned) return true;
  if (!transfer.copy) {
    Device* const device = around_.devices->Use(operation.request.device);
    transfer.copy = std::make_unique<HostCopy>(around_.devices, device, BytesOf(operation));
  }
  if (!transfer.copy->IsThere()) return false;
  if (operation.request.kind == OpKind::kReceive || transfer.copied) return true;
  if (!transfer.mark) transfer.mark = transfer.copy->Down(AddressOf(operation.input));
  if (!transfer.mark->IsDone()) return false;
  transfer.mark.reset();
  return transfer.copied = true;
}

// Return true if the next piece was sent.
bool PointToPoint::PutPiece(Pair& pair, Transfer& send, size_t left, size_t* length) {
  if (send.way == Way::kSlots) return PutToSlots(pair, send, left, length);
  Lane& lane = *pair.lane;
  if (!lane.CanPost()) return false;
  const std::byte* const from = send.copy ? send.copy->data() : send.operation->input;
  *length = std::min(left, lane.slot_bytes());
  std::memcpy(lane.Slot(), from + pair.sent, *length);
  lane.PostMulticast(*length);
  return true;
}

// Start copies to all free slots at once, because ranks that share a GPU wait long for their turns on it.
bool PointToPoint::PutToSlots(Pair& pair, Transfer& send, size_t left, size_t* length) {
  Lane& lane = *pair.lane;
  const std::byte* const tensor = send.operation->input + pair.sent;
  for (size_t at = BytesOf(send.begun); at < left && lane.CanPost(send.begun.size()); at += send.begun.back().length) {
    send.begun.push_back(pair.slots_out->Fill(lane.posted() + send.begun.size(), tensor + at, left - at));
  }
  if (!PopDone(&send.begun, length)) return false;
  lane.PostMulticast(kToken);
  send.last = lane.posted();
  return true;
}

// Return true if one more piece was received.
bool PointToPoint::TakePiece(Pair& pair, Transfer& receive, size_t left, size_t* length) {
  if (receive.way == Way::kSlots) return TakeFromSlots(pair, receive, left, length);
  Lane& lane = *pair.lane;
  std::byte* const to = (receive.copy ? receive.copy->data() : receive.operation->output) + pair.received;
  *length = std::min(left, lane.slot_bytes());
  const std::byte* const piece = lane.Fetch(1 - lane.me(), Lane::Layout::kMulticast, *length, to);
  if (!piece) return false;
  if (piece != to) std::memcpy(to, piece, *length);
  lane.Release();
  return true;
}

bool PointToPoint::TakeFromSlots(Pair& pair, Transfer& receive, size_t left, size_t* length) {
  Lane& lane = *pair.lane;
  std::byte* const tensor = receive.operation->output + pair.received;
  const uint64_t full = lane.PostedBy(1 - lane.me()) - lane.released();
  for (size_t at = BytesOf(receive.begun); at < left && receive.begun.size() < full;
       at += receive.begun.back().length) {
    receive.begun.push_back(pair.slots_in->Empty(lane.released() + receive.begun.size(), tensor + at, left - at));
  }
  if (!PopDone(&receive.begun, length)) return false;
  lane.Release();
  return true;
}

// End the first send, whose pieces are all sent. A send through slots stays in `unread`, because the receiver can read
// the slots only while this rank exists.
void PointToPoint::EndSend(Pair& pair) {
  Transfer send = std::move(pair.outgoing.front());
  pair.outgoing.pop_front();
  pair.sent = 0;
  if (send.way == Way::kSlots) {
    pair.unread.push_back(std::move(send));
  } else {
    Finish(std::move(send.operation), Status::Ok());
  }
}

// End the first receive, whose pieces have all arrived. Return false while its tensor is still being filled.
bool PointToPoint::EndReceive(Pair& pair) {
  Transfer& receive = pair.incoming.front();
  if (receive.copy) {
    if (!receive.mark) receive.mark = receive.copy->Up(AddressOf(receive.operation->output));
    if (!receive.mark->IsDone()) return false;
  }
  std::unique_ptr<Operation> operation = std::move(receive.operation);
  pair.incoming.pop_front();
  pair.received = 0;
  Finish(std::move(operation), Status::Ok());
  return true;
}

bool PointToPoint::StepOut(Pair& pair) {
  bool moved = FinishFailed(&pair.outgoing);
  while (!pair.outgoing.empty() && pair.outgoing.front().failed.ok()) {
    Transfer& send = pair.outgoing.front();
    if (!HasPinned(send)) return moved;
    const size_t left = BytesOf(*send.operation) - pair.sent;
    size_t length = 0;
    if (left && !PutPiece(pair, send, left, &length)) return moved;
    pair.sent += length;
    if (length == left) EndSend(pair);
    moved = true;
  }
  return moved;
}

bool PointToPoint::StepIn(Pair& pair) {
  bool moved = FinishFailed(&pair.incoming);
  while (!pair.incoming.empty() && pair.incoming.front().failed.ok()) {
    Transfer& receive = pair.incoming.front();
    if (!HasPinned(receive)) return moved;
    const size_t left = BytesOf(*receive.operation) - pair.received;
    size_t length = 0;
    if (left && !TakePiece(pair, receive, left, &length)) return moved;
    pair.received += length;
    if (length == left && !EndReceive(pair)) return moved;
    moved = true;
  }
  return moved;
}

bool PointToPoint::StepUnread(Pair& pair) {
  bool moved = false;
  while (!pair.unread.empty() && pair.lane->ReleasedBy(1 - pair.lane->me()) >= pair.unread.front().last) {
    std::unique_ptr<Operation> send = std::move(pair.unread.front().operation);
    pair.unread.pop_front();
    Finish(std::move(send), Status::Ok());
    moved = true;
  }
  return moved;
}

bool PointToPoint::StepToItself(Pair& pair) {
  bool moved = FinishFailed(&pair.incoming) | FinishFailed(&pair.outgoing);
  while (!pair.outgoing.empty() && !pair.incoming.empty()) {
    Transfer &send = pair.outgoing.front(), &receive = pair.incoming.front();
    if (!send.failed.ok() || !HasPinned(send) || !HasPinned(receive)) return moved;
    const size_t bytes = BytesOf(*send.operation);
    if (bytes && pair.received == 0) {
      std::memcpy(receive.copy ? receive.copy->data() : receive.operation->output,
                  send.copy ? send.copy->data() : send.operation->input, bytes);
      pair.received = bytes;
    }
    if (!EndReceive(pair)) return moved;
    EndSend(pair);
    moved = true;
  }
  return moved;
}

// ---- all pairs

bool PointToPoint::Step() {
  bool moved = false;
  for (auto& [rank, pair] : pairs_) {
    for (auto it = pair.unready.begin(); it != pair.unready.end();) OfferReady(rank, pair, (it++)->first);
    for (auto it = pair.unmatched.begin(); it != pair.unmatched.end();) Match(rank, pair, *it++);
    if (rank == around_.rank) moved |= StepToItself(pair);
    if (!pair.lane) continue;
    moved |= StepIn(pair);
    moved |= StepOut(pair);
    moved |= StepUnread(pair);
    moved |= pair.lane->Pump();
    if (!pair.left.ok()) FinishAfterFarewell(pair);
  }
  return moved;
}

bool PointToPoint::AllSent() const {
  const auto is_over = [](const std::deque<Transfer>& queue) { return queue.empty() || queue.front().failed.ok(); };
  return std::all_of(pairs_.begin(), pairs_.end(), [&](const auto& item) {
    const Pair& pair = item.second;
    const bool over = is_over(pair.outgoing) && is_over(pair.incoming);
    return over && (!pair.lane || pair.lane->Idle());
  });
}

bool PointToPoint::Busy() const {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const auto& item) {
    const Pair& pair = item.second;
    return !pair.outgoing.empty() || !pair.incoming.empty() || !pair.unread.empty();
  });
}

bool PointToPoint::WatchesDevice() const {
  const auto watches = [](const std::deque<Transfer>& queue) {
    return !queue.empty() && queue.front().OccupiesDevice();
  };
  return std::any_of(pairs_.begin(), pairs_.end(), [&](const auto& item) {
    const Pair& pair = item.second;
    const bool looks = !pair.unready.empty() || !pair.unmatched.empty();
    return looks || watches(pair.outgoing) || watches(pair.incoming);
  });
}

void PointToPoint::LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit) {
  for (auto& [rank, pair] : pairs_) {
    if (pair.lane) pair.lane->LookForAnswers(now, limit);
  }
}

std::pair<int, std::string> PointToPoint::Broken() const {
  for (const auto& [rank, pair] : pairs_) {
    if (pair.lane && !pair.lane->status().ok()) return {rank, pair.lane->status().text};
  }
  return {-1, ""};
}

}  // namespace hvd
