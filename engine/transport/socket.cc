// SPDX-License-Identifier: Apache-2.0
// The system calls behind socket.h.
#include "transport/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

namespace hvd {

void Fd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

bool ParseAddress(const std::string& text, int port, SocketAddress* address) {
  if (port < 0 || port > 65535) return false;
  *address = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address->storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address->size = sizeof *v4;
    return true;
  }
  *address = {};
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address->storage);
  const size_t percent = text.find('%');
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &v6->sin6_addr) != 1) return false;
  if (percent != std::string::npos) {
    v6->sin6_scope_id = if_nametoindex(text.c_str() + percent + 1);
    if (v6->sin6_scope_id == 0) return false;
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  address->size = sizeof *v6;
  return true;
}

std::string FormatAddress(const std::string& text, int port) {
  const bool v6 = text.find(':') != std::string::npos;
  return (v6 ? "[" + text + "]" : text) + ":" + std::to_string(port);
}

Fd NewTcpSocket(int family) {
  Fd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) SetNoDelay(fd.get());
  return fd;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int LocalPort(int fd) {
  SocketAddress local;
  local.size = sizeof local.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.size) != 0) return -1;
  if (local.storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&local.storage)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&local.storage)->sin_port);
}

bool IsConnected(int fd) {
  SocketAddress there;
  there.size = sizeof there.storage;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0;
}

bool IsConnectedToItself(int fd) {
  SocketAddress here, there;
  here.size = there.size = sizeof here.storage;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 && here.size == there.size &&
         std::memcmp(&here.storage, &there.storage, here.size) == 0;
}

ssize_t ReceiveSome(int fd, void* data, size_t size) {
  ssize_t n;
  do n = recv(fd, data, size, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n;
}

ssize_t SendSome(int fd, const void* data, size_t size) {
  ssize_t n;
  do n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n;
}

ssize_t SendParts(int fd, const std::string_view* parts, size_t count) {
  constexpr size_t kMost = 4;
  iovec vectors[kMost];
  count = std::min(count, kMost);
  for (size_t i = 0; i < count; ++i) vectors[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
  msghdr message = {};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  ssize_t n;
  do n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n;
}

bool IsWritable(int fd) {
  pollfd one = {fd, POLLOUT, 0};
  return poll(&one, 1, 0) > 0;
}

bool HasInput(int fd) {
  pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, 0) > 0;
}

std::chrono::milliseconds UnansweredFor(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_retransmits == 0) return {};
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

std::string ErrorText(int error) { return std::generic_category().message(error); }

}  // namespace hvd
