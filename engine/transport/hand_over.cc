// SPDX-License-Identifier: Apache-2.0
#include "transport/hand_over.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/neighbours.h"

namespace hvd {
namespace {

constexpr char kMemory = 'M', kNoMemory = '-', kSeen = 'Y', kNotSeen = 'N';

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

}  // namespace

HandOver::HandOver(Fd fd, int rank, const Arena* mine, int bell, uint32_t generation)
    : fd_(std::move(fd)), rank_(rank), mine_(mine), bell_(bell), generation_(generation) {}

HandOver::~HandOver() = default;

HandOver::Outcome HandOver::Step() {
  char tag = 0;
  if (stage_ == Stage::kOffer) {
    const int mine[2] = {mine_ ? mine_->fd() : -1, bell_};
    Tell(mine_ ? kMemory : kNoMemory, mine, mine_ ? 2 : 0, Stage::kAwaitOffer);
  }
  if (stage_ == Stage::kAwaitOffer && Receive(&tag)) {
    Status status;
    if (tag == kMemory && received_[0]) arena_ = Arena::Map(received_[0].Release(), &status);
    seen_ = Sees();
    Tell(seen_ ? kSeen : kNotSeen, nullptr, 0, Stage::kAwaitVerdict);
  }
  if (stage_ == Stage::kAwaitVerdict && Receive(&tag)) {
    shared_ = seen_ && tag == kSeen;
    stage_ = Stage::kDone;
  }
  if (stage_ == Stage::kDone) return Outcome::kDone;
  return stage_ == Stage::kBroken ? Outcome::kBroken : Outcome::kInProgress;
}

// Send `tag` with descriptors and enter the stage `next`. One byte fits into the buffer of any socket.
void HandOver::Tell(char tag, const int* descriptors, int count, Stage next) {
  stage_ = SendWithDescriptors(fd(), tag, descriptors, count) ? next : Stage::kBroken;
}

// Return true if the peer's head is visible in the mapped memory. A received descriptor alone does not prove that both
// ranks see the memory, so each one checks.
bool HandOver::Sees() const {
  if (!mine_ || !arena_) return false;
  const auto* head = reinterpret_cast<const ArenaHead*>(arena_->at(0));
  return head->magic == ArenaHead::kMagic && head->rank == static_cast<uint32_t>(rank_) &&
         head->generation == generation_;
}

// Receive a tag and the descriptors sent with it; return false if none has arrived.
bool HandOver::Receive(char* tag) {
  iovec body{tag, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do got = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && !WouldBlock(errno))) stage_ = Stage::kBroken;
  if (got <= 0) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
    int descriptors[2];
    std::memcpy(descriptors, CMSG_DATA(header), sizeof descriptors);
    received_[0].Reset(descriptors[0]);
    received_[1].Reset(descriptors[1]);
  }
  return true;
}

Neighbour HandOver::Take() {
  Neighbour neighbour;
  neighbour.rank = rank_;
  neighbour.life_line = LifeLine(fd_.Release());
  if (!shared_) return neighbour;
  neighbour.arena = std::move(arena_);
  neighbour.bell.fd = received_[1].Release();
  neighbour.bell.asleep = &neighbour.head()->asleep;
  return neighbour;
}

}  // namespace hvd
