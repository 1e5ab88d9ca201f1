// SPDX-License-Identifier: Apache-2.0
// Full-duplex exchange over one socket: the bytes that an allreduce of two ranks on two hosts must send and receive.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "floor.h"

enum { kSegment = 256 * 1024, kPatience = 64 };

static void Die(const char* what) {
  perror(what);
  exit(1);
}

static size_t LeastBytes(size_t a, size_t b) { return a < b ? a : b; }

// Alternate sending and receiving in segments, because one direction alone would fill the buffers and block the other.
void ExchangeOverSocket(const Floor* floor, const float* input, float* output, size_t count) {
  const size_t bytes = count * sizeof(float);
  size_t sent = 0, received = 0;
  int idle = 0;
  while (sent < bytes || received < bytes) {
    int moved = 0;
    if (sent < bytes) {
      const size_t most = LeastBytes(bytes - sent, kSegment);
      const ssize_t n = send(floor->socket, (const char*)input + sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) Die("send");
      if (n > 0) sent += (size_t)n, moved = 1;
    }
    if (received < bytes) {
      const ssize_t n =
          recv(floor->socket, (char*)output + received, LeastBytes(bytes - received, kSegment), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) Die("recv");
      if (n > 0) received += (size_t)n, moved = 1;
    }
    if (!moved && ++idle > kPatience) {
      const short events = (short)((received < bytes ? POLLIN : 0) | (sent < bytes ? POLLOUT : 0));
      poll(&(struct pollfd){floor->socket, events, 0}, 1, 1000);
      idle = 0;
    } else if (moved) {
      idle = 0;
    }
  }
}
