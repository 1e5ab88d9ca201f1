// SPDX-License-Identifier: Apache-2.0
// Buffers between messages and a stream socket.
#include "transport/frame.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/siphash.h"
#include "transport/socket.h"

namespace hvd {
namespace {

constexpr size_t kFirstBuffer = 16u << 10;
constexpr size_t kMostToKeep = 1u << 20;   // one huge message must not hold its memory for ever
constexpr size_t kMostPerFill = 1u << 20;  // after that the caller gets a chance to take messages out

struct Header {
  uint32_t length;
  uint32_t open;
  uint64_t sequence;
  uint64_t tag;
};
static_assert(sizeof(Header) == kFrameHeaderSize);

uint64_t Tag(const uint64_t key[2], const Header& header, std::string_view payload) {
  SipHash hash(key);
  hash.AddWord(header.sequence);
  hash.AddWord(uint64_t{header.open} << 32 | header.length);
  return hash.Finish(payload.substr(0, payload.size() - header.open));
}

}  // namespace

bool FrameWriter::Append(std::string_view payload, size_t open) {
  if (payload.size() > kMaxFramePayload) return false;
  Header header = {static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(open), sequence_++, 0};
  header.tag = Tag(key_, header, payload);
  if (sent_ > out_.size() / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  out_.append(payload);
  return true;
}

FrameIo FrameWriter::Flush(int fd) {
  while (sent_ < out_.size()) {
    ssize_t n = SendSome(fd, out_.data() + sent_, out_.size() - sent_);
    if (n < 0) {
      if (WouldBlock(errno)) return FrameIo::kAgain;
      error_ = errno;
      return FrameIo::kFailed;
    }
    sent_ += static_cast<size_t>(n);
  }
  sent_ = 0;
  out_.clear();
  if (out_.capacity() > kMostToKeep) out_.shrink_to_fit();
  return FrameIo::kDone;
}

FrameIo FrameReader::Fill(int fd, bool once) {
  DropTaken();
  for (size_t read = 0; read < kMostPerFill;) {
    if (buffered() >= kMaxFramePayload + kFrameHeaderSize) return FrameIo::kAgain;
    MakeRoom();
    ssize_t n = ReceiveSome(fd, buffer_.data() + end_, buffer_.size() - end_);
    if (n == 0) return FrameIo::kClosed;
    if (n < 0) {
      if (WouldBlock(errno)) return FrameIo::kDone;
      error_ = errno;
      return FrameIo::kFailed;
    }
    end_ += static_cast<size_t>(n);
    read += static_cast<size_t>(n);
    if (once) return FrameIo::kDone;
  }
  return FrameIo::kAgain;
}

void FrameReader::MakeRoom() {
  if (end_ < buffer_.size()) return;
  if (begin_ > buffer_.size() / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  } else {
    buffer_.resize(buffer_.empty() ? kFirstBuffer : 2 * buffer_.size());
  }
}

FrameReader::Result FrameReader::Next(std::string_view* payload) {
  DropTaken();
  if (corrupt_) return Result::kCorrupt;
  if (buffered() < kFrameHeaderSize) return Result::kNothing;
  Header header;
  std::memcpy(&header, buffer_.data() + begin_, sizeof header);
  if (header.length > kMaxFramePayload || header.open > header.length || header.sequence != sequence_) {
    corrupt_ = true;
    return Result::kCorrupt;
  }
  if (buffered() - kFrameHeaderSize < header.length) return Result::kNothing;
  const std::string_view body(buffer_.data() + begin_ + kFrameHeaderSize, header.length);
  if (Tag(key_, header, body) != header.tag) {
    corrupt_ = true;
    return Result::kCorrupt;
  }
  *payload = body;
  ++sequence_;
  taken_ = kFrameHeaderSize + header.length;
  return Result::kMessage;
}

void FrameReader::DropTaken() {
  begin_ += std::exchange(taken_, 0);
  if (begin_ != end_) return;
  begin_ = end_ = 0;
  if (buffer_.size() > kMostToKeep) std::vector<char>().swap(buffer_);
}

}  // namespace hvd
