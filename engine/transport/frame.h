// SPDX-License-Identifier: Apache-2.0
// Control messages on a stream. A frame is u32 length, u32 open, u64 sequence, u64 tag, payload. The tag (SipHash under
// the session key) covers the numbers and the payload, so that no message can be changed, replayed or reordered. It
// leaves out the last `open` bytes of the payload: they are tensor data, which is not authenticated on data streams
// either. The classes neither own the descriptor nor block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/traffic.h"

namespace hvd {

constexpr size_t kMaxFramePayload = 16u << 20;

struct FrameHeader {
  uint32_t length;
  uint32_t open;
  uint64_t sequence;
  uint64_t tag;
};
constexpr size_t kFrameHeaderSize = sizeof(FrameHeader);
static_assert(kFrameHeaderSize == 24);

enum class FrameIo {
  kDone,    // Flush: all is sent. Fill: all data that had arrived is read
  kAgain,   // Flush: the socket is full, wait until it is writable. Fill: call Next, then Fill again at once
  kClosed,  // Fill: the peer closed its end; complete messages may still be in the buffer
  kFailed,  // see error()
};

class FrameWriter {
 public:
  // `traffic` counts the bytes that the socket takes.
  explicit FrameWriter(const uint64_t key[2], Traffic* traffic = nullptr) : key_{key[0], key[1]}, traffic_(traffic) {}

  // Queue one message that ends with `open`, its unauthenticated tensor data. Return false and queue nothing if the
  // message exceeds kMaxFramePayload. Args: `data` is the number of tensor bytes inside `covered`.
  bool Append(std::string_view covered, std::string_view open = {}, size_t data = 0);
  // Send a message from the caller's memory and queue only the bytes that the socket does not take at once. Return
  // false as Append does.
  bool Send(int fd, std::string_view covered, std::string_view open);
  // Send all queued bytes with as few system calls as possible.
  FrameIo Flush(int fd);
  size_t pending() const { return out_.size() - sent_; }
  int error() const { return error_; }

 private:
  FrameHeader NextHeader(std::string_view covered, std::string_view open, size_t data);
  void CountSent(size_t bytes);

  uint64_t key_[2];
  Traffic* traffic_;
  uint64_t sequence_ = 0;
  std::string out_;
  size_t sent_ = 0;
  size_t unsent_control_ = 0;  // bytes other than tensor data that the socket has not taken yet
  int error_ = 0;
};

class FrameReader {
 public:
  enum class Result { kMessage, kNothing, kCorrupt };

  explicit FrameReader(const uint64_t key[2]) : key_{key[0], key[1]} {}

  // Read until the socket is empty, because edge-triggered events require it, but at most 1 MiB. With `once`, make a
  // single system call; use it to check a socket for which the poller reported no event.
  FrameIo Fill(int fd, bool once = false);
  // Return the next complete message; it stays valid until the next call of Next or Fill. After kCorrupt the stream
  // cannot be trusted any more and should be closed.
  Result Next(std::string_view* payload);
  size_t buffered() const { return end_ - begin_ - taken_; }
  size_t capacity() const { return buffer_.size(); }
  int error() const { return error_; }

 private:
  void MakeRoom();
  void DropTaken();

  uint64_t key_[2];
  uint64_t sequence_ = 0;
  std::vector<char> buffer_;  // [begin_, end_) holds the received bytes; the buffer grows only when it is full
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t taken_ = 0;  // bytes at the beginning that belong to the message that Next returned last
  bool corrupt_ = false;
  int error_ = 0;
};

}  // namespace hvd
