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

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kLifeLineChannel = 0xffffffffu;
constexpr uint32_t kNoMemoryChannel = 0xfffffffeu;
constexpr size_t kMostArriving = 256;

std::string Reason(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// Abstract names live in the network namespace and vanish with the socket.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), std::min(name.size(), sizeof address->sun_path - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool AwaitReady(int fd, short events, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd one{fd, events, 0};
    const int got = poll(&one, 1, static_cast<int>(std::min<long>(left, 1000)));
    if (got > 0) return true;
    if (got < 0 && errno != EINTR) return false;
  }
}

Status Finish(Handshake& handshake, int fd, Clock::time_point until) {
  while (handshake.outcome() == Handshake::Outcome::kInProgress) {
    if (handshake.Step()) continue;
    if (!AwaitReady(fd, POLLIN, until)) return Status::Failed("a local peer did not finish its handshake in time");
  }
  if (handshake.outcome() == Handshake::Outcome::kReady) return Status::Ok();
  return Status::Failed("a local peer was refused: " + handshake.problem());
}

bool SendWithDescriptors(int fd, char tag, const int* descriptors, int count) {
  iovec body{&tag, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (count) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
}

// The tag byte and up to two descriptors; -1 where none came.
bool ReceiveWithDescriptors(int fd, char* tag, int descriptors[2], Clock::time_point until) {
  descriptors[0] = descriptors[1] = -1;
  for (;;) {
    iovec body{tag, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got == 1) {
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
        std::memcpy(descriptors, CMSG_DATA(header), 2 * sizeof(int));
      }
      return true;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (!AwaitReady(fd, POLLIN, until)) return false;
  }
}

}  // namespace

Neighbours::Neighbours(const ConnectorIdentity& me) : me_(me) {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) return;
  static const char* const kHex = "0123456789abcdef";
  name_ = "khorovod-";
  for (unsigned char byte : random) {
    name_ += kHex[byte >> 4];
    name_ += kHex[byte & 15];
  }
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name_, &address);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), length) || listen(listener_, 4096)) {
    if (listener_ >= 0) close(listener_);
    listener_ = -1;
  }
}

Neighbours::~Neighbours() { CloseDescriptors(); }

void Neighbours::CloseDescriptors() {
  while (!arriving_.empty()) DropArriving(arriving_.begin());
  if (listener_ >= 0) close(listener_);
  listener_ = -1;
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.life_line >= 0) close(neighbour.life_line);
    if (neighbour.bell.fd >= 0) close(neighbour.bell.fd);
    if (neighbour.arena) neighbour.arena->CloseDescriptor();
    neighbour.life_line = neighbour.bell.fd = -1;
  }
}

Neighbour* Neighbours::Find(int rank) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) return &neighbour;
  }
  return nullptr;
}

Status Neighbours::Meet(const std::vector<Invitation>& others, const Offer& offer) {
  if (others.empty()) return Status::Ok();
  if (listener_ < 0) return Status::Failed("no unix socket could be opened to meet the other ranks of this host");
  // Everybody dials the lower ranks before accepting the higher ones: no cycle, so no deadlock.
  int expected = 0;
  for (const Invitation& other : others) {
    if (other.rank > me_.rank) {
      ++expected;
    } else if (Status status = DialOne(other, offer); !status.ok()) {
      return status;
    }
  }
  while (expected--) {
    if (Status status = AcceptOne(offer); !status.ok()) return status;
  }
  std::sort(neighbours_.begin(), neighbours_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  close(listener_);
  listener_ = -1;
  while (!arriving_.empty()) DropArriving(arriving_.begin());
  return Status::Ok();
}

Status Neighbours::DialOne(const Invitation& other, const Offer& offer) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Status::Failed(Reason("no unix socket"));
  sockaddr_un address;
  const socklen_t length = AbstractAddress(other.name, &address);
  while (connect(fd, reinterpret_cast<sockaddr*>(&address), length)) {
    if ((errno == EAGAIN || errno == EINTR) && Clock::now() < offer.deadline) continue;
    close(fd);
    return DialByTcp(other.rank, offer);
  }
  StreamKey key;
  key.peer = other.rank;
  key.channel = kLifeLineChannel;
  Handshake handshake = Handshake::Dial(fd, me_, key);
  Status status = Finish(handshake, fd, offer.deadline);
  if (status.ok()) return Exchange(fd, other.rank, offer);
  close(fd);
  return status;
}

Status Neighbours::DialByTcp(int rank, const Offer& offer) {
  StreamKey key;
  key.peer = rank;
  key.channel = kNoMemoryChannel;
  Status status;
  Neighbour neighbour;
  neighbour.rank = rank;
  while ((neighbour.life_line = offer.connector->Take(key, &status).fd) < 0) {
    if (!status.ok()) return status;
    if (Clock::now() > offer.deadline) return {Code::kTimeout, "rank " + std::to_string(rank) + " cannot be reached"};
    if (!offer.connector->Progress())
      AwaitReady(offer.poller->fd(), POLLIN, Clock::now() + std::chrono::milliseconds(5));
  }
  neighbours_.push_back(std::move(neighbour));
  return Status::Ok();
}

bool Neighbours::AcceptByTcp(const Offer& offer) {
  offer.connector->Progress();
  for (const StreamKey& key : offer.connector->Offered()) {
    if (key.channel != kNoMemoryChannel) continue;
    Status status;
    Neighbour neighbour;
    neighbour.rank = key.peer;
    neighbour.life_line = offer.connector->Take(key, &status).fd;
    neighbours_.push_back(std::move(neighbour));
    return true;
  }
  return false;
}

// Several may be shaking hands at once: a stranger that says nothing holds nobody up.
Status Neighbours::AcceptOne(const Offer& offer) {
  while (Clock::now() < offer.deadline) {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
      arriving_.push_back({fd, Handshake::Accept(fd, me_), Clock::now() + std::chrono::seconds(5)});
      if (arriving_.size() > kMostArriving) DropArriving(arriving_.begin());
    }
    std::vector<pollfd> watched = {{listener_, POLLIN, 0}, {offer.poller->fd(), POLLIN, 0}};
    for (auto it = arriving_.begin(); it != arriving_.end();) {
      it->handshake.Step();
      if (it->handshake.outcome() == Handshake::Outcome::kReady) {
        const int fd = it->fd, rank = it->handshake.key().peer;
        arriving_.erase(it);
        return Exchange(fd, rank, offer);
      }
      const bool over = it->handshake.outcome() != Handshake::Outcome::kInProgress || Clock::now() > it->deadline;
      if (!over) watched.push_back({it->fd, POLLIN, 0});
      it = over ? DropArriving(it) : std::next(it);
    }
    if (AcceptByTcp(offer)) return Status::Ok();
    poll(watched.data(), watched.size(), 5);
  }
  return {Code::kTimeout, "the other ranks of this host did not come in time"};
}

std::list<Neighbours::Arriving>::iterator Neighbours::DropArriving(std::list<Arriving>::iterator arriving) {
  close(arriving->fd);
  return arriving_.erase(arriving);
}

Status Neighbours::Exchange(int fd, int rank, const Offer& offer) {
  const Arena* arena = offer.arena;
  const int bell_fd = offer.poller->bell().fd;
  const Clock::time_point until = offer.deadline;
  Neighbour neighbour;
  neighbour.rank = rank;
  neighbour.life_line = fd;
  const int mine[2] = {arena ? arena->fd() : -1, bell_fd};
  char theirs = 0, verdict = 0;
  int received[2], none[2];
  bool talked = SendWithDescriptors(fd, arena ? 'M' : '-', mine, arena ? 2 : 0) &&
                ReceiveWithDescriptors(fd, &theirs, received, until);
  if (talked && theirs == 'M' && received[0] >= 0) {
    Status status;
    neighbour.arena = Arena::Map(received[0], &status);
    neighbour.bell.fd = received[1];
  }
  // Handed over is not enough: both must have seen the other's mark in the memory itself.
  const bool seen = arena && neighbour.arena && neighbour.head()->magic == ArenaHead::kMagic &&
                    neighbour.head()->rank == static_cast<uint32_t>(rank) &&
                    neighbour.head()->generation == me_.generation;
  talked = talked && SendWithDescriptors(fd, seen ? 'Y' : 'N', nullptr, 0) &&
           ReceiveWithDescriptors(fd, &verdict, none, until);
  if (!talked) {
    if (neighbour.bell.fd >= 0) close(neighbour.bell.fd);
    close(fd);
    return Status::Failed("rank " + std::to_string(rank) + " went away while memory was being exchanged");
  }
  if (seen && verdict == 'Y') {
    neighbour.bell.asleep = &neighbour.head()->asleep;
  } else {
    neighbour.arena.reset();
    if (neighbour.bell.fd >= 0) close(neighbour.bell.fd);
    neighbour.bell.fd = -1;
  }
  neighbours_.push_back(std::move(neighbour));
  return Status::Ok();
}

}  // namespace hvd
