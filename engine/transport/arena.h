// SPDX-License-Identifier: Apache-2.0
// A rank's piece of shared memory: one descriptor that local peers map, grown and handed out in regions by its owner.
// Peers map its greatest extent once; pages beyond the present end are never touched before the owner has announced
// them, and every page is allocated before use, so that nobody meets SIGBUS later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "core/types.h"

namespace hvd {

class Arena {
 public:
  static constexpr size_t kExtent = size_t{1} << 32;  // address space each rank's arena may take in its peers

  static std::unique_ptr<Arena> Create(Status* status);
  // Maps a peer's arena; takes ownership of `fd`.
  static std::unique_ptr<Arena> Map(int fd, Status* status);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* at(size_t offset) const { return base_ + offset; }
  int fd() const { return fd_; }

  // Owner only. Returns the offset of a zeroed, fully allocated, page-aligned region, or -1 and a status.
  int64_t Reserve(size_t bytes, Status* status);
  void Free(int64_t offset);
  // In a forked child: the mapping is not there (MADV_DONTFORK), only the descriptor has to go.
  void CloseDescriptor();

 private:
  Arena(int fd, std::byte* base) : fd_(fd), base_(base) {}

  int fd_;
  std::byte* base_;
  size_t end_ = 0;                 // bytes allocated so far
  std::map<size_t, size_t> used_;  // offset -> size
};

}  // namespace hvd
