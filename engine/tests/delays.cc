// SPDX-License-Identifier: Apache-2.0
// Library for LD_PRELOAD that makes threads sleep at random before and after calls at which they meet other threads.
// This produces orders of events that are rare on a quiet machine, such as one rank's message overtaking another's.
// HVD_DELAYS: one call in how many sleeps (default: 20).
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

uint64_t Random() {
  thread_local uint64_t state = 0;
  if (state == 0) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = (static_cast<uint64_t>(now.tv_nsec) << 20) ^ reinterpret_cast<uintptr_t>(&state) ^ 1;
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

uint64_t OneIn() {
  static const uint64_t one_in = [] {
    const char* const text = std::getenv("HVD_DELAYS");
    const uint64_t number = text ? std::strtoull(text, nullptr, 10) : 0;
    return number ? number : 20;
  }();
  return one_in;
}

// Sleep in one of OneIn() calls: mostly a fraction of a millisecond, sometimes as long as a preempted process waits for
// its processor.
void PerhapsSleep() {
  if (Random() % OneIn() != 0) return;
  const timespec duration{0, Random() % 100 == 0 ? 20'000'000 : static_cast<long>(Random() % 1'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
}

template <typename Function, typename... Arguments>
auto Delayed(const char* name, Function* /* only for its type */, Arguments... arguments) {
  const auto next = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  PerhapsSleep();
  const auto result = next(arguments...);
  const int error = errno;
  PerhapsSleep();
  errno = error;
  return result;
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept { return Delayed(__func__, &pthread_mutex_lock, mutex); }
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept { return Delayed(__func__, &pthread_mutex_unlock, mutex); }
int pthread_join(pthread_t thread, void** result) { return Delayed(__func__, &pthread_join, thread, result); }
int sched_yield() noexcept { return Delayed(__func__, &sched_yield); }
int close(int file) { return Delayed(__func__, &close, file); }

ssize_t send(int to, const void* data, size_t size, int flags) {
  return Delayed(__func__, &send, to, data, size, flags);
}
ssize_t recv(int from, void* data, size_t size, int flags) { return Delayed(__func__, &recv, from, data, size, flags); }
ssize_t sendmsg(int to, const msghdr* message, int flags) { return Delayed(__func__, &sendmsg, to, message, flags); }
ssize_t recvmsg(int from, msghdr* message, int flags) { return Delayed(__func__, &recvmsg, from, message, flags); }

int poll(pollfd* files, nfds_t count, int timeout) { return Delayed(__func__, &poll, files, count, timeout); }
int epoll_wait(int poller, epoll_event* events, int most, int timeout) {
  return Delayed(__func__, &epoll_wait, poller, events, most, timeout);
}

}  // extern "C"
