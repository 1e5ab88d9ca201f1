// SPDX-License-Identifier: Apache-2.0
// A rank's piece of shared memory: one descriptor that local peers map, grown and handed out in regions by its owner.
// Peers map its greatest extent once; pages beyond the present end are never touched before the owner has announced
// them, and every page is allocated before use, so that nobody meets SIGBUS later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/types.h"

namespace hvd {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Address space that each rank's arena takes in its peers. ThreadSanitizer leaves little.
#ifndef HVD_ARENA_EXTENT_BITS
#define HVD_ARENA_EXTENT_BITS 34
#endif
  static constexpr size_t kExtent = size_t{1} << HVD_ARENA_EXTENT_BITS;

  static std::unique_ptr<Arena> Create(Status* status);
  // Maps a peer's arena; takes ownership of `fd`.
  static std::unique_ptr<Arena> Map(int fd, Status* status);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* at(size_t offset) const { return base_ + offset; }
  int fd() const { return fd_; }

  // Owner only, from any thread. Returns the offset of a zeroed, fully allocated, page-aligned region, or -1 and a
  // status. A forked child sees regions for tensors, and outputs that were made private.
  enum class Use { kEngine, kTensor, kOutput };
  int64_t Reserve(size_t bytes, Status* status, Use use = Use::kEngine);
  void Free(int64_t offset);
  // Where [address, address + bytes) lies in here, or -1.
  int64_t OffsetOf(const void* address, size_t bytes) const;
  // The same for memory that peers are about to write to: -1 also if it is private. Its region stays shared while the
  // pin lives.
  class Pin;
  int64_t PlaceOf(const void* address, size_t bytes, Pin* pin);
  // From here on what is written to a region stays in this process; not while it is pinned. MakeShared undoes it,
  // without the contents; where it cannot, the region must not be freed for another use.
  bool MakePrivate(size_t offset, size_t bytes);
  bool MakeShared(size_t offset, size_t bytes);
  // In a forked child: a copy takes the place of memory that MakePrivate has refused.
  static bool CopyInChild(void* address, size_t bytes);
  // Nothing can be reserved any more; what was reserved lives on.
  void CloseDescriptor();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  bool InForkedChild() const;

 private:
  Arena(int fd, std::byte* base);

  int fd_;
  std::atomic<bool> closed_{false};
  std::byte* base_;
  int process_;  // that made this mapping
  struct Region {
    size_t bytes;
    Use use;
    bool is_private = false;
    int pins = 0;
  };
  void Unpin(size_t region);
  std::mutex mutex_;               // guards used_ and fd_; never taken in a forked child
  std::map<size_t, Region> used_;  // by offset
};

class Arena::Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept : arena_(std::move(other.arena_)), region_(other.region_) {}
  Pin& operator=(Pin&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(region_, other.region_);
    return *this;
  }
  ~Pin() {
    if (arena_) arena_->Unpin(region_);
  }

 private:
  friend class Arena;
  Pin(std::shared_ptr<Arena> arena, size_t region) : arena_(std::move(arena)), region_(region) {}

  std::shared_ptr<Arena> arena_;
  size_t region_ = 0;
};

}  // namespace hvd
