// SPDX-License-Identifier: Apache-2.0
#include "transport/poller.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

namespace hvd {

Poller::Poller() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  bell_.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bell_.asleep = &private_flag_;
  if (!ok()) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = bell_.fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_.fd, &event);
}

Poller::~Poller() { CloseDescriptors(); }

void Poller::CloseDescriptors() {
  if (epoll_ >= 0) close(epoll_);
  if (bell_.fd >= 0) close(bell_.fd);
  epoll_ = bell_.fd = -1;
}

void Poller::Add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void Poller::Remove(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Poller::Sleep(Clock::time_point until) const {
  const auto left = std::max(Clock::duration::zero(), until - Clock::now());
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  timespec timeout{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  // Poll the epoll descriptor itself, because ppoll takes a timeout in nanoseconds and epoll_wait one in milliseconds.
  pollfd whole{epoll_, POLLIN, 0};
  ppoll(&whole, 1, &timeout, nullptr);
}

bool Poller::Nap(Clock::duration time) const {
  const timespec timeout{0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()};
  pollfd bell{bell_.fd, POLLIN, 0};
  return ppoll(&bell, 1, &timeout, nullptr) > 0;
}

const std::vector<int>& Poller::Collect() {
  ready_.clear();
  epoll_event events[64];
  int count;
  do {
    count = epoll_wait(epoll_, events, 64, 0);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == bell_.fd) {
        bell_.Silence();
      } else {
        ready_.push_back(events[i].data.fd);
      }
    }
  } while (count == 64);
  return ready_;
}

}  // namespace hvd
