// SPDX-License-Identifier: Apache-2.0
// Buffers between messages and a stream socket.
#include "transport/frame.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "transport/siphash.h"
#include "transport/socket.h"

namespace hvd {
namespace {

constexpr size_t kFirstBuffer = 16u << 10;
// Capacity above which an empty buffer is freed, so that one huge message does not hold memory indefinitely.
constexpr size_t kMostToKeep = 1u << 20;
constexpr size_t kMostPerFill = 1u << 20;  // limit for one Fill, so that the caller can take out messages in between

uint64_t Tag(const uint64_t key[2], const FrameHeader& header, std::string_view covered) {
  SipHash hash(key);
  hash.AddWord(header.sequence);
  hash.AddWord(uint64_t{header.open} << 32 | header.length);
  return hash.Finish(covered);
}

}  // namespace

FrameHeader FrameWriter::NextHeader(std::string_view covered, std::string_view open, size_t data) {
  const size_t length = covered.size() + open.size();
  FrameHeader header = {static_cast<uint32_t>(length), static_cast<uint32_t>(open.size()), sequence_++, 0};
  header.tag = Tag(key_, header, covered);
  unsent_control_ += sizeof header + covered.size() - data;
  return header;
}

// Count `bytes` as sent. While part of the queue is unsent, bytes count as control first, so the two sums are exact
// only when the queue is empty.
void FrameWriter::CountSent(size_t bytes) {
  const size_t control = std::min(bytes, unsent_control_);
  unsent_control_ -= control;
  if (!traffic_) return;
  traffic_->control_sent.Add(control);
  if (bytes > control) traffic_->data_sent.Add(bytes - control);
}

bool FrameWriter::Append(std::string_view covered, std::string_view open, size_t data) {
  if (covered.size() + open.size() > kMaxFramePayload) return false;
  const FrameHeader header = NextHeader(covered, open, data);
  if (sent_ > out_.size() / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  out_.append(reinterpret_cast<const char*>(&header), sizeof header).append(covered).append(open);
  return true;
}

bool FrameWriter::Send(int fd, std::string_view covered, std::string_view open) {
  if (pending() > 0) return Append(covered, open);
  if (covered.size() + open.size() > kMaxFramePayload) return false;
  const FrameHeader header = NextHeader(covered, open, 0);
  std::string_view parts[] = {{reinterpret_cast<const char*>(&header), sizeof header}, covered, open};
  const ssize_t n = SendParts(fd, parts, std::size(parts));
  // Do not handle an error here, because the next Flush meets it again.
  size_t sent = n > 0 ? static_cast<size_t>(n) : 0;
  CountSent(sent);
  for (std::string_view& part : parts) {
    const size_t gone = std::min(sent, part.size());
    out_.append(part.substr(gone));
    sent -= gone;
  }
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
    CountSent(static_cast<size_t>(n));
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
  FrameHeader header;
  std::memcpy(&header, buffer_.data() + begin_, sizeof header);
  if (header.length > kMaxFramePayload || header.open > header.length || header.sequence != sequence_) {
    corrupt_ = true;
    return Result::kCorrupt;
  }
  if (buffered() - kFrameHeaderSize < header.length) return Result::kNothing;
  const std::string_view body(buffer_.data() + begin_ + kFrameHeaderSize, header.length);
  if (Tag(key_, header, body.substr(0, body.size() - header.open)) != header.tag) {
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
