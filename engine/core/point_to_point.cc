// SPDX-License-Identifier: Apache-2.0
#include "core/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "agreement/control.h"
#include "base/wire.h"

namespace hvd {
namespace {

constexpr uint32_t kChannel = 0xfffffff0u;  // beyond every process set's

int64_t TagOf(const Operation& operation) { return operation.request.splits[0]; }
size_t BytesOf(const Operation& operation) { return static_cast<size_t>(operation.request.shape[0]); }

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

PointToPoint::PointToPoint(const Surroundings& around, Mailbox* mailbox, Completions* completions)
    : around_(around), mailbox_(mailbox), completions_(completions) {}

PointToPoint::~PointToPoint() = default;

PointToPoint::Pair& PointToPoint::PairWith(int rank) {
  Pair& pair = pairs_[rank];
  if (pair.reserved || rank == around_.rank) return pair;
  pair.reserved = true;
  mailbox_->Expect(rank, false);
  Neighbour* neighbour = around_.neighbours->Find(rank);
  Status no_room;  // then the pair uses sockets
  if (around_.arena && neighbour && neighbour->arena) {
    pair.my_region = around_.arena->Reserve(Lane::BytesNeeded(OptionsOf(*around_.settings)), &no_room);
  }
  return pair;
}

void PointToPoint::Start(std::unique_ptr<Operation> operation) {
  const int rank = operation->request.root;
  const int64_t tag = TagOf(*operation);
  Pair& pair = PairWith(rank);
  if (operation->request.kind == OpKind::kReceive) {
    pair.receives[tag].push_back(std::move(operation));
    return Match(rank, pair, tag);
  }
  const uint64_t id = ++last_id_, bytes = BytesOf(*operation);
  pair.offered[id] = std::move(operation);
  if (rank == around_.rank) {
    pair.offers[tag].push_back({id, bytes});
    return Match(rank, pair, tag);
  }
  mailbox_->Send(rank, control::EncodeOffer({id, tag, bytes, pair.my_region}));
}

bool PointToPoint::OnOffer(int from, std::string_view body) {
  control::Offer offer;
  if (!control::DecodeOffer(&body, &offer)) return false;
  Pair& pair = PairWith(from);
  pair.their_region = offer.region;
  pair.offers[offer.tag].push_back({offer.id, offer.bytes});
  Match(from, pair, offer.tag);
  return true;
}

void PointToPoint::Match(int rank, Pair& pair, int64_t tag) {
  auto& offers = pair.offers[tag];
  auto& receives = pair.receives[tag];
  while (!offers.empty() && !receives.empty()) {
    const Offer offer = offers.front();
    std::unique_ptr<Operation> receive = std::move(receives.front());
    offers.pop_front();
    receives.pop_front();
    if (rank == around_.rank) {
      Deliver(std::move(pair.offered[offer.id]), std::move(receive));
      pair.offered.erase(offer.id);
      continue;
    }
    const uint64_t expected = BytesOf(*receive);
    mailbox_->Send(rank, control::EncodeAccept({offer.id, expected, pair.my_region}));
    if (expected != offer.bytes) {
      completions_->Finish(std::move(receive), WrongSize(tag, offer.bytes, expected));
      continue;
    }
    BuildLane(rank, pair);
    pair.incoming.push_back(std::move(receive));
  }
  if (offers.empty()) pair.offers.erase(tag);
  if (receives.empty()) pair.receives.erase(tag);
}

bool PointToPoint::OnAccept(int from, std::string_view body) {
  control::Accept accept;
  if (!control::DecodeAccept(&body, &accept)) return false;
  Pair& pair = PairWith(from);
  auto found = pair.offered.find(accept.id);
  if (found == pair.offered.end()) return true;  // it failed here meanwhile
  std::unique_ptr<Operation> send = std::move(found->second);
  pair.offered.erase(found);
  pair.their_region = accept.region;
  if (accept.bytes != BytesOf(*send)) {
    const int64_t tag = TagOf(*send);
    const uint64_t bytes = BytesOf(*send);
    completions_->Finish(std::move(send), WrongSize(tag, bytes, accept.bytes));
    return true;
  }
  BuildLane(from, pair);
  pair.outgoing.push_back(std::move(send));
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

void PointToPoint::Deliver(std::unique_ptr<Operation> send, std::unique_ptr<Operation> receive) {
  Status status;
  if (BytesOf(*send) == BytesOf(*receive)) {
    if (BytesOf(*send)) std::memcpy(receive->output, send->input, BytesOf(*send));
  } else {
    status = WrongSize(TagOf(*send), BytesOf(*send), BytesOf(*receive));
  }
  completions_->Finish(std::move(send), status);
  completions_->Finish(std::move(receive), status);
}

bool PointToPoint::StepOut(Pair& pair) {
  bool moved = false;
  while (!pair.outgoing.empty()) {
    const Operation& send = *pair.outgoing.front();
    const size_t left = BytesOf(send) - pair.sent;
    if (left) {
      if (!pair.lane->CanPost()) return moved;
      const size_t length = std::min(left, pair.lane->slot_bytes());
      std::memcpy(pair.lane->Slot(), send.input + pair.sent, length);
      pair.lane->PostMulticast(length);
      pair.sent += length;
      moved = true;
      if (length < left) continue;
    }
    std::unique_ptr<Operation> done = std::move(pair.outgoing.front());
    pair.outgoing.pop_front();
    pair.sent = 0;
    completions_->Finish(std::move(done), Status::Ok());
    moved = true;
  }
  return moved;
}

bool PointToPoint::StepIn(Pair& pair) {
  bool moved = false;
  while (!pair.incoming.empty()) {
    const Operation& receive = *pair.incoming.front();
    const size_t left = BytesOf(receive) - pair.received;
    if (left) {
      const size_t length = std::min(left, pair.lane->slot_bytes());
      std::byte* to = receive.output + pair.received;
      const std::byte* piece = pair.lane->Fetch(1 - pair.lane->me(), Lane::Layout::kMulticast, length, to);
      if (!piece) return moved;
      if (piece != to) std::memcpy(to, piece, length);
      pair.lane->Release();
      pair.received += length;
      moved = true;
      if (length < left) continue;
    }
    std::unique_ptr<Operation> done = std::move(pair.incoming.front());
    pair.incoming.pop_front();
    pair.received = 0;
    completions_->Finish(std::move(done), Status::Ok());
    moved = true;
  }
  return moved;
}

bool PointToPoint::Step() {
  bool moved = false;
  for (auto& [rank, pair] : pairs_) {
    if (!pair.lane) continue;
    moved |= StepIn(pair);
    moved |= StepOut(pair);
    moved |= pair.lane->Pump();
  }
  return moved;
}

bool PointToPoint::AllSent() const {
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [](const auto& item) { return !item.second.lane || item.second.lane->Idle(); });
}

bool PointToPoint::Busy() const {
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [](const auto& item) { return !item.second.outgoing.empty() || !item.second.incoming.empty(); });
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

void PointToPoint::Fail(int rank, const Status& status) {
  for (auto& [other, pair] : pairs_) {
    if (rank >= 0 && rank != other) continue;
    for (auto& [id, operation] : pair.offered) completions_->Finish(std::move(operation), status);
    pair.offered.clear();
    for (auto& [tag, waiting] : pair.receives) {
      for (auto& operation : waiting) completions_->Finish(std::move(operation), status);
    }
    pair.receives.clear();
    // What was accepted can still finish after a farewell, if all of it lies there.
    if (rank >= 0 && !pair.in_memory) continue;
    if (rank >= 0) {
      StepIn(pair);
      StepOut(pair);
    }
    for (auto* queue : {&pair.outgoing, &pair.incoming}) {
      for (auto& operation : *queue) completions_->Finish(std::move(operation), status);
      queue->clear();
    }
  }
}

void PointToPoint::CloseDescriptors() {
  for (auto& [rank, pair] : pairs_) {
    if (pair.lane) pair.lane->CloseDescriptors();
  }
}

}  // namespace hvd
