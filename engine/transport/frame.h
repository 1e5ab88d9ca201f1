// SPDX-License-Identifier: Apache-2.0
// Control messages on a stream. A frame is u32 length, u32 open, u64 sequence, u64 tag, payload; the tag (SipHash under
// the session key) covers the numbers and the payload, so that nothing can be changed, replayed or reordered; only the
// last `open` bytes of the payload, which are tensor data, are left out, as they are on lanes. Neither class owns the
// descriptor or blocks.
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
  kDone,    // Flush: all is sent. Fill: all that had arrived is read
  kAgain,   // Flush: the socket is full, wait until it is writable. Fill: take the messages, then call again at once
  kClosed,  // Fill: the peer closed its end; messages read before may still be there
  kFailed,  // see error()
};

class FrameWriter {
 public:
  // `traffic` counts what goes into the socket.
  explicit FrameWriter(const uint64_t key[2], Traffic* traffic = nullptr) : key_{key[0], key[1]}, traffic_(traffic) {}

  // Queues one message, which ends with `open`, tensor data; false (and nothing queued) if both are larger than
  // kMaxFramePayload. `data`: how many bytes of `covered` are tensor data too.
  bool Append(std::string_view covered, std::string_view open = {}, size_t data = 0);
  // The same, but what the socket takes at once is sent from where it lies, and only the rest is queued.
  bool Send(int fd, std::string_view covered, std::string_view open);
  // Sends everything queued with as few calls as the socket allows.
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
  size_t unsent_control_ = 0;  // bytes that are no tensor data, of all that the socket has not taken
  int error_ = 0;
};

class FrameReader {
 public:
  enum class Result { kMessage, kNothing, kCorrupt };

  explicit FrameReader(const uint64_t key[2]) : key_{key[0], key[1]} {}

  // Reads until the socket is empty, as edge-triggered waiting needs, but not without bound. `once`: only what one call
  // brings, as a mere look that no edge asked for may.
  FrameIo Fill(int fd, bool once = false);
  // The next complete message; it stays where it is until the next call of Next or Fill. kCorrupt is final: the stream
  // can no longer be trusted and should be closed.
  Result Next(std::string_view* payload);
  size_t buffered() const { return end_ - begin_ - taken_; }
  size_t capacity() const { return buffer_.size(); }
  int error() const { return error_; }

 private:
  void MakeRoom();
  void DropTaken();

  uint64_t key_[2];
  uint64_t sequence_ = 0;
  std::vector<char> buffer_;  // [begin_, end_) holds what was read; it grows only when bytes have filled it
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t taken_ = 0;  // bytes at the beginning that Next has given out
  bool corrupt_ = false;
  int error_ = 0;
};

}  // namespace hvd
