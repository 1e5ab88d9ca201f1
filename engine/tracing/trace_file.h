// SPDX-License-Identifier: Apache-2.0
// File with a JSON array that grows by whole events and is complete after every write. A write stays inside one page of
// the file wherever possible, because the kernel does not interrupt that. A write that must move the array's end to the
// next page can lose that end if the process is killed in that moment, but no event is lost, because events never cross
// pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.h"

namespace hvd {

class TraceFile {
 public:
  // Page size: the kernel copies page by page, and may stop between two pages if the process is killed.
  static constexpr size_t kPage = 4096;

  TraceFile() = default;
  ~TraceFile() { CloseDescriptor(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Make the file an empty array; its previous contents are lost.
  Status Open(const std::string& path);
  // Queue one JSON object of at most kPage - 2 bytes for the next Flush.
  void Add(std::string_view event);
  size_t pending() const { return pending_.size(); }
  // Write the queued events, followed by the end of the array. On failure, the file keeps the events that fitted, is a
  // complete array, and is closed.
  Status Flush();
  void CloseDescriptor();

 private:
  Status Write(std::string_view data);

  int fd_ = -1;
  uint64_t end_ = 0;  // position of the array's end, which the next write overwrites
  bool first_ = true;
  std::string pending_;
};

// Append `text` in quotes. Control characters are escaped, and bytes that are not UTF-8 become the replacement
// character.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace hvd
