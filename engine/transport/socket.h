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

// Owner of one descriptor.
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

// Parse a numeric address ("10.0.0.1", "::1", "fe80::1%eth0"); return false if `text` is none. Names are not resolved,
// because a name service could block or answer wrongly.
bool ParseAddress(const std::string& text, int port, SocketAddress* address);
std::string FormatAddress(const std::string& text, int port);  // "10.0.0.1:80", "[::1]:80"

// Open a socket with O_NONBLOCK, CLOEXEC and TCP_NODELAY; on failure return an empty Fd and set errno.
Fd NewTcpSocket(int family);
void SetNoDelay(int fd);  // has no effect on a unix socket
int LocalPort(int fd);
bool IsConnected(int fd);  // returns false while the other end has not accepted
// Return true if the socket is connected to its own address. TCP allows that (simultaneous open) when a process dials a
// free port of its own host; no other process is at the other end then.
bool IsConnectedToItself(int fd);

// Transfer as many bytes as the socket has or takes now. Return -1 and set errno otherwise (EAGAIN: none now). EINTR is
// retried and SIGPIPE is never raised.
ssize_t ReceiveSome(int fd, void* data, size_t size);
ssize_t SendSome(int fd, const void* data, size_t size);
ssize_t SendParts(int fd, const std::string_view* parts, size_t count);  // sends up to four parts with one system call
bool IsWritable(int fd);  // returns true also at the end of the stream and after an error
bool HasInput(int fd);    // returns true for bytes, a connection to accept, the end of the stream and an error
inline bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Return the time since the last acknowledgement if the kernel is retransmitting data, otherwise zero. A slow reader at
// the other end also gives zero, because its kernel still acknowledges.
std::chrono::milliseconds UnansweredFor(int fd);

std::string ErrorText(int error);  // thread-safe strerror

}  // namespace hvd
