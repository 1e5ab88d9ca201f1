// SPDX-License-Identifier: Apache-2.0
// Small helpers over stream sockets: an owning descriptor, numeric addresses, non-blocking reads and writes.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace hvd {

// Owns one descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Numeric only ("10.0.0.1", "::1", "fe80::1%eth0"): no name service can block us or lie to us. False if it is not.
bool ParseAddress(const std::string& text, int port, SocketAddress* address);
std::string FormatAddress(const std::string& text, int port);  // "10.0.0.1:80", "[::1]:80"

// Non-blocking, CLOEXEC, TCP_NODELAY; empty with errno set on failure.
Fd NewTcpSocket(int family);
void SetNoDelay(int fd);  // does nothing on a unix socket
int LocalPort(int fd);
bool IsConnected(int fd);  // False while the other end has not accepted.
// A dial to a free port of this machine may meet itself (TCP simultaneous open): nobody is at the other end then.
bool IsConnectedToItself(int fd);

// What the socket has or takes now. -1 with errno (EAGAIN: nothing now); EINTR is retried, SIGPIPE never raised.
ssize_t ReceiveSome(int fd, void* data, size_t size);
ssize_t SendSome(int fd, const void* data, size_t size);
ssize_t SendParts(int fd, const std::string_view* parts, size_t count);  // up to four, as one
bool IsWritable(int fd);                                                 // or has an end or an error
bool HasInput(int fd);  // bytes, a connection to accept, an end or an error
inline bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Whether what was sent is sent again and again while the other end's kernel acknowledges nothing: since how long it
// has said nothing at all. Zero if all is well, and also where a slow reader keeps it waiting.
std::chrono::milliseconds UnansweredFor(int fd);

std::string ErrorText(int error);  // thread-safe strerror

}  // namespace hvd
