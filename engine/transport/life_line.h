// SPDX-License-Identifier: Apache-2.0
// The connection that two ranks of one host keep open: the kernel closes it when a process dies, however it dies.
// Nothing but a rank's end is announced over it, so there is always room for that, even if the other end reads nothing.
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

  // The end of the world, as far as this rank is concerned.
  void SayLastWords(const LastWords& words);
  // The connection will be closed, and that is meant.
  void SayFarewell();

  // Takes in what has come.
  void Read();
  const std::optional<LastWords>& last_words() const { return last_words_; }
  bool farewell() const { return farewell_; }
  bool ended() const { return ended_; }  // nobody is at the other end any more

 private:
  bool TakeMessage();

  Fd fd_;
  std::string unread_;
  std::optional<LastWords> last_words_;
  bool farewell_ = false, ended_ = false;
};

}  // namespace hvd
