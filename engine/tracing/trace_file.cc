// SPDX-License-Identifier: Apache-2.0
#include "tracing/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hvd {
namespace {

constexpr std::string_view kStart = "[\n";
constexpr std::string_view kEnd = "\n]\n";
// separates events and occurs nowhere else, because strings contain no line ends
constexpr std::string_view kSeparator = ",\n";

// Return the length of the valid UTF-8 sequence at the start of `text`, or 0 if there is none.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : (lead & 0xf0) == 0xe0       ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Reject overlong encodings, surrogates, and code points beyond Unicode.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90)) return 0;
  return length;
}

// Return how many bytes of whole events, together with the array's end, fit into `room`; at least one event.
size_t SizeOfPiece(std::string_view events, size_t room) {
  size_t size = 0;
  while (size < events.size()) {
    const size_t next = std::min(events.find(kSeparator, size + 1), events.size());
    if (size > 0 && next + kEnd.size() > room) break;
    size = next;
  }
  return size;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const unsigned char byte = static_cast<unsigned char>(text[0]);
    const size_t length = SequenceLength(text);
    if (length == 0) {
      out->append("\\ufffd");
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out->append(escape);
    } else {
      if (byte == '"' || byte == '\\') out->push_back('\\');
      out->append(text.substr(0, length));
    }
    text.remove_prefix(length ? length : 1);
  }
  out->push_back('"');
}

Status TraceFile::Open(const std::string& path) {
  // Open without blocking, so that a pipe without a reader is refused.
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd_ < 0) return Status::Failed("cannot write '" + path + "': " + std::strerror(errno));
  end_ = 0;
  first_ = true;
  pending_ = kStart;
  Status status = Flush();
  if (!status.ok()) status.text = "cannot write '" + path + "': " + status.text;
  return status;
}

void TraceFile::Add(std::string_view event) {
  const std::string_view separator = first_ ? std::string_view() : kSeparator;
  const size_t length = separator.size() + event.size();
  const size_t room = kPage - (end_ + pending_.size()) % kPage;
  if (length > room) pending_.append(room, ' ');
  pending_.append(separator).append(event);
  first_ = false;
}

// Write in pieces, each with the array's end, which the next piece overwrites. So the array is complete between two
// pieces.
Status TraceFile::Flush() {
  Status status = Status::Ok();
  std::string_view rest = pending_;
  while (!rest.empty() && fd_ >= 0 && status.ok()) {
    const size_t size = SizeOfPiece(rest, kPage - end_ % kPage);
    status = Write(std::string(rest.substr(0, size)).append(kEnd));
    if (status.ok()) end_ += size;
    rest.remove_prefix(size);
  }
  pending_.clear();
  if (status.ok()) return status;
  // Restore the array's end. It needs no more space than the file had before, so this works on a full disk too.
  if (end_ > 0 && Write(kEnd).ok()) {
    [[maybe_unused]] const int ignored = ftruncate(fd_, static_cast<off_t>(end_ + kEnd.size()));
  }
  CloseDescriptor();
  return status;
}

Status TraceFile::Write(std::string_view data) {
  uint64_t at = end_;
  while (!data.empty()) {
    const ssize_t wrote = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return Status::Failed(std::strerror(wrote < 0 ? errno : ENOSPC));
    at += static_cast<uint64_t>(wrote);
    data.remove_prefix(static_cast<size_t>(wrote));
  }
  return Status::Ok();
}

void TraceFile::CloseDescriptor() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace hvd
