// SPDX-License-Identifier: Apache-2.0
#include "transport/neighbours.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kLifeLineChannel = 0xffffffffu;
constexpr uint32_t kNoMemoryChannel = 0xfffffffeu;
constexpr size_t kMostArriving = 256;
constexpr milliseconds kDialAgain{20}, kHandshakeLimit{5000};
// time to keep connecting after a loss, so that ranks that are late receive the reason
constexpr milliseconds kTellOthers{1000};
constexpr int kLookAgainMs = 20;

// Fill in an address in the abstract namespace. Such names exist per network namespace and vanish with the socket.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), std::min(name.size(), sizeof address->sun_path - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd NewUnixSocket() { return Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

Neighbours::Neighbours(const ConnectorIdentity& me, std::string host) : me_(me), host_(std::move(host)) {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) return;
  static const char* const kHex = "0123456789abcdef";
  name_ = "khorovod-";
  for (unsigned char byte : random) {
    name_ += kHex[byte >> 4];
    name_ += kHex[byte & 15];
  }
  listener_ = NewUnixSocket();
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name_, &address);
  if (!listener_ || bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) ||
      listen(listener_.get(), 4096)) {
    listener_.Reset();
  }
}

Neighbours::~Neighbours() { CloseDescriptors(); }

void Neighbours::CloseDescriptors() {
  arriving_.clear();
  guests_.clear();
  listener_.Reset();
  for (Neighbour& neighbour : neighbours_) {
    neighbour.life_line.Close();
    if (neighbour.bell.fd >= 0) close(neighbour.bell.fd);
    if (neighbour.arena) neighbour.arena->CloseDescriptor();
    neighbour.bell.fd = -1;
  }
}

Neighbour* Neighbours::Find(int rank) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) return &neighbour;
  }
  return nullptr;
}

void Neighbours::RingHungry() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.arena) neighbour.bell.RingIfHungry();
  }
}

Status Neighbours::Meet(const std::vector<Invitation>& others, const Offer& offer) {
  if (others.empty()) return Status::Ok();
  if (!listener_) return Status::Failed("no unix socket could be opened to meet the other ranks of this host");
  heartbeats_ = Heartbeats(offer.silence);
  for (const Invitation& other : others) {
    Guest& guest = guests_.emplace_back();
    guest.rank = other.rank;
    guest.name = other.name;
    heartbeats_.Expect(guest.rank, Clock::now());
  }
  std::optional<LastWords> loss;
  Clock::time_point until = offer.deadline;
  for (;;) {
    AcceptAll(offer);
    GreetGuests(offer);
    if (guests_.empty() || (loss && Clock::now() > until)) break;
    if (!loss && (loss = FindLoss(offer))) {
      // Connect to the remaining ranks before leaving, so that they receive the reason first. Otherwise they would take
      // this rank's exit for the loss.
      guests_.remove_if([&loss](const Guest& guest) { return guest.rank == loss->lost_rank; });
      until = Clock::now() + kTellOthers;
      continue;
    }
    Await(offer);
  }
  std::sort(neighbours_.begin(), neighbours_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  listener_.Reset();
  arriving_.clear();
  guests_.clear();
  return loss ? Status::Failed(loss->why, loss->lost_rank) : Status::Ok();
}

// ---- ranks that are not connected yet

void Neighbours::GreetGuests(const Offer& offer) {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    if (Step(&*guest, offer)) {
      heartbeats_.Forget(guest->rank);
      guest = guests_.erase(guest);
    } else {
      ++guest;
    }
  }
}

// Return true once the rank is connected. The higher rank dials, and redials after a failure; the lower one waits.
bool Neighbours::Step(Guest* guest, const Offer& offer) {
  if (!guest->hand_over) {
    if (guest->rank > me_.rank || !guest->refused.empty()) return false;
    if (!(guest->by_tcp ? DialByTcp(guest, offer) : Dial(guest, offer))) return false;
    if (guest->by_tcp) return true;
  }
  switch (guest->hand_over->Step()) {
    case HandOver::Outcome::kInProgress:
      return false;
    case HandOver::Outcome::kDone:
      neighbours_.push_back(guest->hand_over->Take());
      return true;
    case HandOver::Outcome::kBroken:
      guest->hand_over.reset();
      guest->next_dial = Clock::now() + kDialAgain;
      return false;
  }
  return false;
}

// Return true once the handshake is done and the exchange of memory can begin.
bool Neighbours::Dial(Guest* guest, const Offer& offer) {
  const Clock::time_point now = Clock::now();
  if (!guest->fd) {
    if (now < guest->next_dial) return false;
    guest->fd = NewUnixSocket();
    sockaddr_un address;
    const socklen_t length = AbstractAddress(guest->name, &address);
    if (!guest->fd || connect(guest->fd.get(), reinterpret_cast<sockaddr*>(&address), length)) {
      guest->by_tcp = guest->fd && errno != EAGAIN && errno != EINTR;
      guest->next_dial = now + kDialAgain;
      guest->fd.Reset();
      return false;
    }
    StreamKey key;
    key.peer = guest->rank;
    key.channel = kLifeLineChannel;
    guest->handshake = Handshake::Dial(guest->fd.get(), me_, key);
  }
  if (guest->handshake->Step()) heartbeats_.Heard(guest->rank, now);
  const Handshake::Outcome outcome = guest->handshake->outcome();
  if (outcome == Handshake::Outcome::kInProgress) return false;
  if (outcome == Handshake::Outcome::kReady) {
    guest->hand_over.emplace(std::move(guest->fd), guest->rank, offer.arena, offer.poller->bell().fd, me_.generation);
    return true;
  }
  if (outcome != Handshake::Outcome::kBroken) guest->refused = guest->handshake->problem();
  guest->fd.Reset();
  guest->next_dial = now + kDialAgain;
  return false;
}

// Return true once the rank is connected; over TCP, no memory is shared.
bool Neighbours::DialByTcp(Guest* guest, const Offer& offer) {
  StreamKey key;
  key.peer = guest->rank;
  key.channel = kNoMemoryChannel;
  Status status;
  const int fd = offer.connector->Take(key, &status).fd;
  guest->refused = status.text;
  if (fd < 0) return false;
  Neighbour& neighbour = neighbours_.emplace_back();
  neighbour.rank = guest->rank;
  neighbour.life_line = LifeLine(fd);
  return true;
}

// ---- accepted connections

// Accept all waiting connections. Their handshakes run concurrently, so that a silent stranger delays no peer.
void Neighbours::AcceptAll(const Offer& offer) {
  const Clock::time_point now = Clock::now();
  for (;;) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    Handshake handshake = Handshake::Accept(fd.get(), me_);
    arriving_.push_back({std::move(fd), std::move(handshake), now + kHandshakeLimit});
    if (arriving_.size() > kMostArriving) arriving_.pop_front();
  }
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    it->handshake.Step();
    if (it->handshake.outcome() == Handshake::Outcome::kReady) Welcome(&*it, offer);
    const bool over = it->handshake.outcome() != Handshake::Outcome::kInProgress || now > it->deadline;
    it = over ? arriving_.erase(it) : std::next(it);
  }
  AcceptByTcp(offer);
}

void Neighbours::Welcome(Arriving* arriving, const Offer& offer) {
  const int rank = arriving->handshake.key().peer;
  for (Guest& guest : guests_) {
    if (guest.rank != rank || rank < me_.rank) continue;
    heartbeats_.Heard(rank, Clock::now());
    guest.hand_over.emplace(std::move(arriving->fd), rank, offer.arena, offer.poller->bell().fd, me_.generation);
  }
}

void Neighbours::AcceptByTcp(const Offer& offer) {
  offer.connector->Progress();
  for (const StreamKey& key : offer.connector->Offered()) {
    if (key.channel != kNoMemoryChannel) continue;
    Status status;
    Neighbour& neighbour = neighbours_.emplace_back();
    neighbour.rank = key.peer;
    neighbour.life_line = LifeLine(offer.connector->Take(key, &status).fd);
    guests_.remove_if([&key](const Guest& guest) { return guest.rank == key.peer; });
    heartbeats_.Forget(key.peer);
  }
}

// ---- losses

LastWords Neighbours::Lost(int rank, const std::string& why) const { return {rank, NameLoss(rank, host_, why)}; }

// Return a loss that a peer has reported or that a peer's closed connection shows. Check the reports of all peers
// first, because a peer that reported a loss ended only because of it.
std::optional<LastWords> Neighbours::WhatNeighboursSay() {
  for (Neighbour& neighbour : neighbours_) {
    neighbour.life_line.Read();
    if (neighbour.life_line.last_words()) return neighbour.life_line.last_words();
  }
  for (const Neighbour& neighbour : neighbours_) {
    const LifeLine& line = neighbour.life_line;
    if (line.ended() && !line.farewell()) return Lost(neighbour.rank, "its process ended during hvd.init()");
  }
  return std::nullopt;
}

std::optional<LastWords> Neighbours::FindLoss(const Offer& offer) {
  if (std::optional<LastWords> words = WhatNeighboursSay()) return words;
  const Clock::time_point now = Clock::now();
  const WatchSpan absence = heartbeats_.Absence(now);
  for (const Guest& guest : guests_) {
    if (!guest.refused.empty()) return Lost(guest.rank, guest.refused);
    if (!offer.connector->Deserted(guest.rank)) continue;
    if (absence > WatchSpan::zero()) return Lost(me_.rank, Heartbeats::AbsenceText(absence));
    return Lost(guest.rank, "its process ended during hvd.init(), before it had connected");
  }
  const std::vector<int> silent = heartbeats_.Silent(now);
  if (!silent.empty()) return Lost(silent[0], heartbeats_.SilenceText());
  if (now < offer.deadline) return std::nullopt;
  return Lost(guests_.front().rank, "it did not connect in time (HOROVOD_GLOO_TIMEOUT_SECONDS sets the limit)");
}

void Neighbours::Await(const Offer& offer) const {
  // Keep the pulse going, because peers that are already connected watch it.
  if (offer.arena) reinterpret_cast<ArenaHead*>(offer.arena->at(0))->pulse.fetch_add(1, std::memory_order_relaxed);
  std::vector<pollfd> watched = {{listener_.get(), POLLIN, 0}, {offer.poller->fd(), POLLIN, 0}};
  for (const Arriving& arriving : arriving_) watched.push_back({arriving.fd.get(), POLLIN, 0});
  for (const Guest& guest : guests_) {
    if (guest.fd) watched.push_back({guest.fd.get(), POLLIN, 0});
    if (guest.hand_over) watched.push_back({guest.hand_over->fd(), POLLIN, 0});
  }
  poll(watched.data(), watched.size(), kLookAgainMs);
  offer.poller->Collect();  // takes the events, which would otherwise end each poll at once
}

}  // namespace hvd
