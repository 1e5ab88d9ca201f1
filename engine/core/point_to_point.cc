// SPDX-License-Identifier: Apache-2.0
#include "core/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "agreement/control.h"
#include "base/wire.h"

namespace hvd {
namespace {

constexpr uint32_t kChannel = 0xfffffff0u;  // beyond every process set's

int64_t TagOf(const Operation& operation) { return operation.request.splits[0]; }
size_t BytesOf(const Operation& operation) { return static_cast<size_t>(operation.request.shape[0]); }
bool IsOnGpu(const Operation& operation) { return operation.request.device >= 0; }

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

Status Refused(const std::string& why_not) { return Status::Failed("HOROVOD_GPU_TRANSPORT=nccl, but " + why_not); }

}  // namespace

PointToPoint::PointToPoint(const Surroundings& around, Mailbox* mailbox, Completions* completions, const Log& log)
    : around_(around),
      mailbox_(mailbox),
      completions_(completions),
      log_(log),
      ends_(around.settings, around.devices) {}

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

// ---- from the caller to the offer

void PointToPoint::Start(std::unique_ptr<Operation> operation) {
  const int rank = operation->request.root;
  const int64_t tag = TagOf(*operation);
  Pair& pair = PairWith(rank);
  if (operation->request.kind == OpKind::kReceive) {
    pair.receives[tag].push_back(std::move(operation));
    return Match(rank, pair, tag);
  }
  pair.unready[tag].push_back(std::move(operation));
  OfferReady(rank, pair, tag);
}

// What was put on the caller's stream before is done there, and it is known what is told of the GPU.
bool PointToPoint::IsReady(const Operation& operation) {
  if (!IsOnGpu(operation)) return true;
  return ends_.Of(operation.request.device) && (!operation.ready || operation.ready->IsDone());
}

// Of one tag none overtakes another.
void PointToPoint::OfferReady(int rank, Pair& pair, int64_t tag) {
  Queue& queue = pair.unready[tag];
  while (!queue.empty() && IsReady(*queue.front())) {
    std::unique_ptr<Operation> send = std::move(queue.front());
    queue.pop_front();
    const uint64_t id = ++last_id_, bytes = BytesOf(*send);
    std::string gpu = IsOnGpu(*send) ? GpuEnds::Encode(*ends_.Of(send->request.device)) : "";
    pair.offered[id] = std::move(send);
    if (rank == around_.rank) {
      pair.offers[tag].push_back({id, bytes, std::move(gpu)});
      Match(rank, pair, tag);
    } else {
      mailbox_->Send(rank, control::EncodeOffer({id, tag, bytes, pair.my_region, std::move(gpu)}));
    }
  }
  if (queue.empty()) pair.unready.erase(tag);
}

// ---- from the offer to the way

bool PointToPoint::OnOffer(int from, std::string_view body) {
  control::Offer offer;
  NcclPassport passport;
  if (!control::DecodeOffer(&body, &offer)) return false;
  if (!offer.gpu.empty() && !GpuEnds::Decode(offer.gpu, &passport)) return false;
  Pair& pair = PairWith(from);
  pair.their_region = offer.region;
  pair.offers[offer.tag].push_back({offer.id, offer.bytes, std::move(offer.gpu)});
  Match(from, pair, offer.tag);
  return true;
}

void PointToPoint::Match(int rank, Pair& pair, int64_t tag) {
  auto& offers = pair.offers[tag];
  auto& receives = pair.receives[tag];
  pair.unmatched.erase(tag);
  while (!offers.empty() && !receives.empty()) {
    if (!IsReady(*receives.front())) {
      pair.unmatched.insert(tag);
      break;
    }
    const Offer offer = std::move(offers.front());
    std::unique_ptr<Operation> receive = std::move(receives.front());
    offers.pop_front();
    receives.pop_front();
    Accept(rank, pair, offer, std::move(receive));
  }
  if (offers.empty()) pair.offers.erase(tag);
  if (receives.empty()) pair.receives.erase(tag);
}

void PointToPoint::Accept(int rank, Pair& pair, const Offer& offer, std::unique_ptr<Operation> receive) {
  const uint64_t expected = BytesOf(*receive);
  const Status wrong_size = WrongSize(TagOf(*receive), offer.bytes, expected);
  control::Accept accept{offer.id, expected, pair.my_region, control::Accept::kByHost, ""};
  if (rank == around_.rank) {
    std::unique_ptr<Operation> send = std::move(pair.offered[offer.id]);
    pair.offered.erase(offer.id);
    if (expected != offer.bytes) {
      completions_->Finish(std::move(send), wrong_size);
      return completions_->Finish(std::move(receive), wrong_size);
    }
    pair.outgoing.push_back(TransferOf(std::move(send)));
    pair.incoming.push_back(TransferOf(std::move(receive)));
    StepToItself(pair);
    return;
  }
  if (expected != offer.bytes) {
    mailbox_->Send(rank, control::EncodeAccept(accept));
    return completions_->Finish(std::move(receive), wrong_size);
  }
  if (GoesOverNccl(rank, pair, offer, *receive, &accept.word)) {
    pair.unnamed.push_back({offer.id, std::move(receive)});
    return AcceptNamed(rank, pair);
  }
  if (!accept.word.empty()) accept.way = control::Accept::kRefused;
  mailbox_->Send(rank, control::EncodeAccept(accept));
  if (!accept.word.empty()) return completions_->Finish(std::move(receive), Refused(accept.word));
  BuildLane(rank, pair);
  pair.incoming.push_back(TransferOf(std::move(receive)));
}

// `why_not`: somebody insists, in vain.
bool PointToPoint::GoesOverNccl(int rank, Pair& pair, const Offer& offer, const Operation& receive,
                                std::string* why_not) {
  NcclPassport sender;
  if (offer.gpu.empty() || !IsOnGpu(receive) || !GpuEnds::Decode(offer.gpu, &sender)) return false;
  const NcclPassport& own = *ends_.Of(receive.request.device);
  const std::string against = GpuEnds::Against(sender, rank, own, around_.rank);
  if (!std::exchange(pair.told_way, true)) {
    log_.Info([&] {
      return "messages from rank " + std::to_string(rank) +
             (against.empty() ? " go through NCCL " + NcclVersionText(own.version)
                              : " go through host memory: " + against);
    });
  }
  if (!against.empty()) {
    if (GpuEnds::Insists(sender, own)) *why_not = against;
    return false;
  }
  if (!pair.path_in) {
    pair.gpu_of_path_in = offer.gpu;
    pair.path_in = std::make_unique<NcclPath>(around_.devices, around_.devices->Use(receive.request.device),
                                              ends_.nccl(), NcclPath::End::kReceiver, rank);
  }
  // A pair has one path each way: what lies on other GPUs goes through host memory.
  return pair.path_in->device()->ordinal() == receive.request.device && pair.gpu_of_path_in == offer.gpu;
}

// In their order, for that is the one in which both ends launch them.
void PointToPoint::AcceptNamed(int rank, Pair& pair) {
  const NcclId* const name = pair.path_in->Name();
  if (!name) return;
  for (Accepted& one : std::exchange(pair.unnamed, {})) {
    control::Accept accept{one.id, BytesOf(*one.receive), pair.my_region, control::Accept::kByNccl, ""};
    if (!std::exchange(pair.told_name, true)) accept.word.assign(name->bytes, sizeof name->bytes);
    mailbox_->Send(rank, control::EncodeAccept(accept));
    pair.path_in->Put(std::move(one.receive));
  }
}

bool PointToPoint::OnAccept(int from, std::string_view body) {
  control::Accept accept;
  if (!control::DecodeAccept(&body, &accept)) return false;
  Pair& pair = PairWith(from);
  auto found = pair.offered.find(accept.id);
  // It failed here meanwhile, or will: who is about to leave commits itself to nothing more.
  if (found == pair.offered.end() || around_.devices->leaving().load()) return true;
  if (accept.way == control::Accept::kByNccl && !MeetOnPath(from, pair, accept.word, *found->second)) return false;
  std::unique_ptr<Operation> send = std::move(found->second);
  pair.offered.erase(found);
  pair.their_region = accept.region;
  if (accept.way == control::Accept::kRefused) {
    completions_->Finish(std::move(send), Refused(accept.word));
  } else if (accept.bytes != BytesOf(*send)) {
    const Status status = WrongSize(TagOf(*send), BytesOf(*send), accept.bytes);
    completions_->Finish(std::move(send), status);
  } else if (accept.way == control::Accept::kByNccl) {
    pair.path_out->Put(std::move(send));
    mailbox_->Send(from, control::EncodeCommit());
  } else {
    BuildLane(from, pair);
    pair.outgoing.push_back(TransferOf(std::move(send)));
  }
  return true;
}

void PointToPoint::OnCommit(int from) {
  Pair& pair = PairWith(from);
  if (pair.path_in) pair.path_in->Commit();
}

// Whether there is a path: the first time `word` is its name.
bool PointToPoint::MeetOnPath(int rank, Pair& pair, const std::string& word, const Operation& send) {
  NcclId name;
  if (!IsOnGpu(send) || !ends_.nccl() || word.size() != (pair.path_out ? 0 : sizeof name)) return false;
  if (pair.path_out) return true;
  std::memcpy(name.bytes, word.data(), sizeof name);
  pair.path_out = std::make_unique<NcclPath>(around_.devices, around_.devices->Use(send.request.device), ends_.nccl(),
                                             NcclPath::End::kSender, rank);
  pair.path_out->Meet(name);
  return true;
}

// ---- over the lane

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

PointToPoint::Transfer PointToPoint::TransferOf(std::unique_ptr<Operation> operation) {
  const bool sends = operation->request.kind == OpKind::kSend;
  const std::byte* const tensor = sends ? operation->input : operation->output;
  Transfer transfer;
  try {
    if (IsOnGpu(*operation) && BytesOf(*operation) > 0) {
      transfer.copy = std::make_unique<HostCopy>(around_.devices, around_.devices->Use(operation->request.device),
                                                 reinterpret_cast<CudaAddress>(tensor), BytesOf(*operation), sends);
    }
  } catch (const DeviceError& error) {  // which ends the world, and whoever waits is told
    completions_->Finish(std::move(operation), Status::Failed(error.what()));
    throw;
  }
  transfer.operation = std::move(operation);
  return transfer;
}

void PointToPoint::FinishFirst(std::deque<Transfer>* queue) {
  Transfer& first = queue->front();
  const bool receives = first.operation->request.kind == OpKind::kReceive;
  if (first.copy && receives) first.operation->handle->launched = first.copy->Up();
  Transfer done = std::move(first);
  queue->pop_front();
  completions_->Finish(std::move(done.operation), Status::Ok());
}

bool PointToPoint::StepToItself(Pair& pair) {
  bool moved = false;
  for (; !pair.outgoing.empty() && pair.outgoing.front().IsThere() && pair.incoming.front().IsThere(); moved = true) {
    const size_t bytes = BytesOf(*pair.outgoing.front().operation);
    if (bytes) std::memcpy(pair.incoming.front().to(), pair.outgoing.front().from(), bytes);
    FinishFirst(&pair.outgoing);
    FinishFirst(&pair.incoming);
  }
  return moved;
}

bool PointToPoint::StepOut(Pair& pair) {
  bool moved = false;
  while (!pair.outgoing.empty() && pair.outgoing.front().IsThere()) {
    const Transfer& send = pair.outgoing.front();
    const size_t left = BytesOf(*send.operation) - pair.sent;
    if (left) {
      if (!pair.lane->CanPost()) return moved;
      const size_t length = std::min(left, pair.lane->slot_bytes());
      std::memcpy(pair.lane->Slot(), send.from() + pair.sent, length);
      pair.lane->PostMulticast(length);
      pair.sent += length;
      moved = true;
      if (length < left) continue;
    }
    FinishFirst(&pair.outgoing);
    pair.sent = 0;
    moved = true;
  }
  return moved;
}

bool PointToPoint::StepIn(Pair& pair) {
  bool moved = false;
  while (!pair.incoming.empty() && pair.incoming.front().IsThere()) {
    const Transfer& receive = pair.incoming.front();
    const size_t left = BytesOf(*receive.operation) - pair.received;
    if (left) {
      const size_t length = std::min(left, pair.lane->slot_bytes());
      std::byte* to = receive.to() + pair.received;
      const std::byte* piece = pair.lane->Fetch(1 - pair.lane->me(), Lane::Layout::kMulticast, length, to);
      if (!piece) return moved;
      if (piece != to) std::memcpy(to, piece, length);
      pair.lane->Release();
      pair.received += length;
      moved = true;
      if (length < left) continue;
    }
    FinishFirst(&pair.incoming);
    pair.received = 0;
    moved = true;
  }
  return moved;
}

// ---- all of it

bool PointToPoint::StepPaths(int rank, Pair& pair) {
  bool moved = false;
  if (!pair.unnamed.empty()) AcceptNamed(rank, pair);
  for (NcclPath* path : pair.Paths()) moved |= path->Step(completions_);
  return moved;
}

bool PointToPoint::Step() {
  bool moved = false;
  for (auto& [rank, pair] : pairs_) {
    for (auto it = pair.unready.begin(); it != pair.unready.end();) OfferReady(rank, pair, (it++)->first);
    for (auto it = pair.unmatched.begin(); it != pair.unmatched.end();) Match(rank, pair, *it++);
    moved |= StepPaths(rank, pair);
    if (rank == around_.rank) moved |= StepToItself(pair);
    if (!pair.lane) continue;
    moved |= StepIn(pair);
    moved |= StepOut(pair);
    moved |= pair.lane->Pump();
    if (!pair.left.ok()) FinishAfterFarewell(pair);
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

bool PointToPoint::WatchesDevice() const {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const auto& item) {
    const Pair& pair = item.second;
    const auto copies = [](const std::deque<Transfer>& queue) { return !queue.empty() && queue.front().copy; };
    return !pair.unready.empty() || !pair.unmatched.empty() || copies(pair.outgoing) || copies(pair.incoming);
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

// Those that the other end does not know of, or has not been told to expect.
void PointToPoint::FailUnaccepted(Pair& pair, const Status& status) {
  const auto fail = [&](std::unique_ptr<Operation>& operation) { completions_->Finish(std::move(operation), status); };
  for (auto& [id, operation] : std::exchange(pair.offered, {})) fail(operation);
  for (auto* queues : {&pair.unready, &pair.receives}) {
    for (auto& [tag, waiting] : std::exchange(*queues, {})) {
      for (auto& operation : waiting) fail(operation);
    }
  }
  for (Accepted& one : std::exchange(pair.unnamed, {})) fail(one.receive);
  pair.unmatched.clear();
}

void PointToPoint::FailAccepted(Pair& pair, const Status& status) {
  for (auto* queue : {&pair.outgoing, &pair.incoming}) {
    for (Transfer& transfer : std::exchange(*queue, {})) completions_->Finish(std::move(transfer.operation), status);
  }
}

// What was accepted can still finish after a farewell, if all of it lies there.
void PointToPoint::FinishAfterFarewell(Pair& pair) {
  StepIn(pair);
  StepOut(pair);
  const bool lacks_memory = !pair.incoming.empty() && !pair.incoming.front().IsThere();
  if (!lacks_memory) FailAccepted(pair, pair.left);
}

void PointToPoint::Fail(int rank, const Status& status) {
  for (auto& [other, pair] : pairs_) {
    if (rank >= 0 && rank != other) continue;
    FailUnaccepted(pair, status);
    for (NcclPath* path : pair.Paths())
      rank >= 0 ? path->OnLeft(completions_, status) : path->Fail(completions_, status);
    if (rank < 0) {
      FailAccepted(pair, status);
    } else if (pair.in_memory) {
      pair.left = status;
      FinishAfterFarewell(pair);
    }
  }
}

void PointToPoint::CloseDescriptors() {
  for (auto& [rank, pair] : pairs_) {
    if (pair.lane) pair.lane->CloseDescriptors();
  }
}

// ---- NCCL's ends

std::vector<NcclPath*> PointToPoint::Pair::Paths() const {
  std::vector<NcclPath*> paths;
  for (const auto* path : {&path_in, &path_out}) {
    if (*path) paths.push_back(path->get());
  }
  return paths;
}

std::string PointToPoint::Trouble() {
  for (auto& [rank, pair] : pairs_) {
    for (NcclPath* path : pair.Paths()) {
      if (std::string trouble = path->Trouble(); !trouble.empty()) return trouble;
    }
  }
  return "";
}

int PointToPoint::StuckOn(std::chrono::steady_clock::time_point now) const {
  for (const auto& [rank, pair] : pairs_) {
    for (const NcclPath* path : pair.Paths()) {
      if (path->IsStuck(now)) return rank;
    }
  }
  return -1;
}

void PointToPoint::AbortPaths() {
  for (auto& [rank, pair] : pairs_) {
    for (NcclPath* path : pair.Paths()) path->Abort();
  }
}

// Both ends of a path may have to be there: all ranks take leave in one order.
void PointToPoint::LeaveDevices(bool whole, std::chrono::steady_clock::time_point until) {
  std::map<std::tuple<int, int, bool>, NcclPath*> in_order;
  for (auto& [rank, pair] : pairs_) {
    const int low = std::min(rank, around_.rank), high = std::max(rank, around_.rank);
    if (pair.path_in) in_order[{low, high, rank == low}] = pair.path_in.get();
    if (pair.path_out) in_order[{low, high, rank == high}] = pair.path_out.get();
  }
  for (auto& [order, path] : in_order) path->Leave(whole, until);
}

}  // namespace hvd
