// SPDX-License-Identifier: Apache-2.0
// Liveness socket: a connection that two ranks of one host keep open, because the kernel closes it however a process
// dies. A rank sends only its leave notice or its abort reason over it, so these always fit into the socket buffer,
// even if the peer reads nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/loss.h"
#include "transport/socket.h"

namespace hvd {

class LifeLine {
 public:
  LifeLine() = default;
  explicit LifeLine(int fd) : fd_(fd) {}

  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

  // Send the reason for which this rank ends the world.
  void SayLastWords(const LastWords& words);
  // Send the leave notice, so that the peer does not take the close that follows for a loss.
  void SayFarewell();

  // Read and decode the data that has arrived.
  void Read();
  const std::optional<LastWords>& last_words() const { return last_words_; }
  bool farewell() const { return farewell_; }
  bool ended() const { return ended_; }  // returns true once the peer has closed the connection

 private:
  bool TakeMessage();

  Fd fd_;
  std::string unread_;
  std::optional<LastWords> last_words_;
  bool farewell_ = false, ended_ = false;
};

}  // namespace hvd
