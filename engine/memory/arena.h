// SPDX-License-Identifier: Apache-2.0
// A rank's shared memory: one descriptor that local peers map, which its owner extends and hands out in regions. Peers
// map its maximum size once. They touch pages beyond the current end only after the owner has announced them, and every
// page is allocated before use, so that no process gets SIGBUS.
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
  // Address space for each arena in its owner and peers. ThreadSanitizer leaves little room.
#ifndef HVD_ARENA_EXTENT_BITS
#define HVD_ARENA_EXTENT_BITS 34
#endif
  static constexpr size_t kExtent = size_t{1} << HVD_ARENA_EXTENT_BITS;

  static std::unique_ptr<Arena> Create(Status* status);
  // Map a peer's arena. Takes ownership of `fd`.
  static std::unique_ptr<Arena> Map(int fd, Status* status);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* at(size_t offset) const { return base_ + offset; }
  int fd() const { return fd_; }

  // Reserve a zeroed, fully allocated, page-aligned region, and return its offset or -1 and a status. Only the owner
  // calls it, from any thread. A forked child sees the regions of kTensor, and those of kOutput that were made private.
  enum class Use { kEngine, kTensor, kOutput };
  int64_t Reserve(size_t bytes, Status* status, Use use = Use::kEngine);
  void Free(int64_t offset);
  // Return the offset of [address, address + bytes) in this arena, or -1 if that range is not inside it.
  int64_t OffsetOf(const void* address, size_t bytes) const;
  // Return the offset of memory that peers are about to write to, or -1 if it is outside or private. The region stays
  // shared while the pin exists.
  class Pin;
  int64_t PlaceOf(const void* address, size_t bytes, Pin* pin);
  // MakePrivate keeps later writes to a region in this process; it fails while the region is pinned. MakeShared undoes
  // this without keeping the contents; if it fails, the region must not be freed for reuse.
  bool MakePrivate(size_t offset, size_t bytes);
  bool MakeShared(size_t offset, size_t bytes);
  // Replace memory in a forked child by a copy. Used where MakePrivate failed.
  static bool CopyInChild(void* address, size_t bytes);
  // Prevent further reservations. Existing regions stay valid.
  void CloseDescriptor();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  bool InForkedChild() const;

 private:
  Arena(int fd, std::byte* base);

  int fd_;
  std::atomic<bool> closed_{false};
  std::byte* base_;
  int process_;  // process that created this mapping
  struct Region {
    size_t bytes;
    Use use;
    bool is_private = false;
    int pins = 0;
  };
  void Unpin(size_t region);
  std::mutex mutex_;               // guards used_ and fd_; never taken in a forked child
  std::map<size_t, Region> used_;  // regions by offset
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
