// SPDX-License-Identifier: Apache-2.0
// A JSON array in a file that grows by whole events and is complete after every write. A write stays inside one page of
// the file wherever it can: the kernel does not cut that. The few that must move the array's end to the next page can
// lose it to a kill in that very microsecond, but no event: events never cross pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.h"

namespace hvd {

class TraceFile {
 public:
  static constexpr size_t kPage = 4096;  // the kernel copies page by page, and may stop between two when killed

  TraceFile() = default;
  ~TraceFile() { CloseDescriptor(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Makes the file an empty array. What was in it is lost.
  Status Open(const std::string& path);
  // Adds one JSON object of at most kPage - 2 bytes to the next Flush.
  void Add(std::string_view event);
  size_t pending() const { return pending_.size(); }
  // Writes what was added, and the end of the array behind it. On failure the file keeps what found
  // room, is complete, and is closed.
  Status Flush();
  void CloseDescriptor();

 private:
  Status Write(std::string_view data);

  int fd_ = -1;
  uint64_t end_ = 0;  // where the array's end is, which the next write overwrites
  bool first_ = true;
  std::string pending_;
};

// `text` between quotes. Control characters are escaped; bytes that are not UTF-8 become the replacement character.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace hvd
