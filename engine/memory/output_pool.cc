// SPDX-License-Identifier: Apache-2.0
#include "memory/output_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace hvd {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kWorthKeeping = size_t{16} << 10;  // for smaller outputs, malloc reuses memory well enough
constexpr size_t kKeptBuffers = 16;
constexpr size_t kMostShared = size_t{2} << 30;  // limit for shared outputs; leaves room in the arena for other uses

// Return the limit for kept memory: enough for the outputs of most steps, but a small share of the machine's memory.
size_t MostKeptBytes() {
  static const size_t most =
      std::clamp(static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 32,
                 size_t{128} << 20, size_t{512} << 20);
  return most;
}

struct Header {  // header of ordinary memory, stored in the cache line before the data
  size_t capacity;
  void* memory;  // pointer to pass to free()
};
static_assert(sizeof(Header) <= kLine);

Header* HeaderOf(void* data) { return reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kLine); }

struct Block {
  void* data = nullptr;
  size_t capacity = 0;
  std::shared_ptr<Arena> arena;  // the arena of the memory; null for ordinary memory
  bool handed_over = false;
  bool is_private = false;  // true once it was made private, before a fork or before the arena closes

  size_t offset() const { return static_cast<size_t>(arena->OffsetOf(data, capacity)); }
};

// Allocate a large output in huge pages, because new memory costs one page fault per page.
Header* AllocateLarge(size_t bytes) {
  const size_t whole = ((kLine + bytes) / kPageBytes + 1) * kPageBytes;
  void* memory = nullptr;
  if (posix_memalign(&memory, kHugePage, whole)) return nullptr;
  madvise(memory, whole, MADV_HUGEPAGE);
  return new (memory) Header{whole - kLine, memory};
}

// Allocate a small output and align it by hand: malloc keeps small pieces ready, aligned_alloc searches for one each
// time.
Header* AllocateSmall(size_t bytes) {
  const size_t capacity = (bytes / kLine + 1) * kLine;
  void* memory = std::malloc(capacity + 2 * kLine);
  if (!memory) return nullptr;
  const uintptr_t line = (reinterpret_cast<uintptr_t>(memory) + kLine - 1) / kLine * kLine;
  return new (reinterpret_cast<void*>(line)) Header{capacity, memory};
}

void* AllocateOrdinary(size_t bytes) {
  Header* header = bytes >= kHugePage ? AllocateLarge(bytes) : AllocateSmall(bytes);
  return header ? reinterpret_cast<std::byte*>(header) + kLine : nullptr;
}

void GiveBack(const Block& block) {
  if (!block.arena) {
    std::free(HeaderOf(block.data)->memory);
  } else if (!block.arena->InForkedChild()) {
    if (block.is_private && !block.arena->MakeShared(block.offset(), block.capacity)) return;
    block.arena->Free(static_cast<int64_t>(block.offset()));
  } else if (block.is_private) {
    munmap(block.data, block.capacity);
  }
}

class Pool {
 public:
  Pool();

  // Return a kept block that fits and is not much larger than needed, from the arena if possible.
  Block Take(size_t bytes, const Arena* arena) {
    std::lock_guard<std::mutex> lock(mutex_);
    Block block = TakeFrom(arena, bytes);
    if (!block.data && arena) block = TakeFrom(nullptr, bytes);
    if (block.arena) in_use_[block.data] = block;
    return block;
  }

  // Allocate a shared block, or return null if there is no room.
  void* AllocateShared(const std::shared_ptr<Arena>& arena, size_t bytes) {
    bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (shared_bytes_ + bytes > kMostShared || bytes > MostKeptBytes()) return nullptr;
      shared_bytes_ += bytes;
    }
    Status no_room;
    const int64_t offset = arena->Reserve(bytes, &no_room, Arena::Use::kOutput);
    std::lock_guard<std::mutex> lock(mutex_);
    if (offset < 0) {
      shared_bytes_ -= bytes;
      return nullptr;
    }
    void* data = arena->at(static_cast<size_t>(offset));
    in_use_[data] = {data, bytes, arena};
    return data;
  }

  void HandOver(void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = in_use_.find(data);
    if (found != in_use_.end()) found->second.handed_over = true;
  }

  bool Lend(void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = in_use_.find(data);
    if (found == in_use_.end() || found->second.arena->closed() || found->second.arena->InForkedChild()) return false;
    found->second.handed_over = true;
    return true;
  }

  bool TakeBack(void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = in_use_.find(data);
    if (found == in_use_.end()) return false;
    found->second.handed_over = false;
    return !found->second.is_private && !found->second.arena->closed();
  }

  // Remove a shared output from those in use and return it; return a block without data if it is not shared.
  Block Return(void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = in_use_.find(data);
    if (found == in_use_.end()) return {};
    Block block = std::move(found->second);
    in_use_.erase(found);
    return block;
  }

  void Keep(Block block) {
    std::vector<Block> given_up;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      block.handed_over = false;
      const bool of_use = !block.arena || !(block.is_private || block.arena->closed());
      if (of_use) {
        kept_bytes_ += block.capacity;
        kept_.push_back(std::move(block));
      } else {
        Forget(block);
        given_up.push_back(std::move(block));
      }
      while (kept_bytes_ > MostKeptBytes() || kept_.size() > kKeptBuffers) {  // frees the oldest block first
        kept_bytes_ -= kept_.front().capacity;
        Forget(kept_.front());
        given_up.push_back(std::move(kept_.front()));
        kept_.erase(kept_.begin());
      }
    }
    for (const Block& one : given_up) GiveBack(one);
  }

  void Trim() {
    std::vector<Block> given_up;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      given_up.swap(kept_);
      kept_bytes_ = 0;
      for (const Block& one : given_up) Forget(one);
    }
    for (const Block& one : given_up) GiveBack(one);
  }

  // Make outputs private before a fork, because the child must find in them what they held at the fork, whatever this
  // process and its peers do with the memory later.
  void BeforeFork() {
    mutex_.lock();
    MakePrivate(nullptr);
  }
  void AfterFork() { mutex_.unlock(); }
  // Copy the outputs that could not be made private before the fork, because peers were writing to them.
  void InChild() {
    for (auto& [data, block] : in_use_) {
      if (block.handed_over && !block.is_private) block.is_private = block.arena->CopyInChild(data, block.capacity);
    }
    mutex_.unlock();
  }

  // Make outputs private now, because the arena cannot do it after it has closed.
  void BeforeClosing(const Arena* arena) {
    std::lock_guard<std::mutex> lock(mutex_);
    MakePrivate(arena);
  }

 private:
  // Make the outputs of one arena private, or, for null, those of all arenas.
  void MakePrivate(const Arena* arena) {
    for (auto& [data, block] : in_use_) {
      const bool meant = block.handed_over && !block.is_private && (!arena || block.arena.get() == arena);
      if (meant && !block.arena->InForkedChild()) {
        block.is_private = block.arena->MakePrivate(block.offset(), block.capacity);
      }
    }
  }

  Block TakeFrom(const Arena* arena, size_t bytes) {
    for (size_t i = kept_.size(); i-- > 0;) {
      const size_t capacity = kept_[i].capacity;
      if (kept_[i].arena.get() != arena || capacity < bytes || capacity - bytes > bytes / 4) continue;
      Block block = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= capacity;
      return block;
    }
    return {};
  }

  void Forget(const Block& block) {
    if (block.arena) shared_bytes_ -= block.capacity;
  }

  std::mutex mutex_;
  std::vector<Block> kept_;
  size_t kept_bytes_ = 0;
  std::map<void*, Block> in_use_;  // outputs in arenas that callers hold
  size_t shared_bytes_ = 0;        // size of all blocks in arenas, in use or kept
};

// Return the pool. It is never destroyed, because outputs may be freed while the process exits.
Pool& ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

Pool::Pool() {
  pthread_atfork([] { ThePool().BeforeFork(); }, [] { ThePool().AfterFork(); }, [] { ThePool().InChild(); });
}

bool MayBeShared(const void* data) { return reinterpret_cast<uintptr_t>(data) % kPageBytes == 0; }

}  // namespace

void* AllocateOutput(size_t bytes, const std::shared_ptr<Arena>& arena) {
  if (bytes < kWorthKeeping) return AllocateOrdinary(bytes);
  const Block block = ThePool().Take(bytes, arena.get());
  if (!block.data) return AllocateOrdinary(bytes);
  if (!arena || block.arena) return block.data;
  // Use shared pages, because an output of this size was needed before and will be needed again, while their cost
  // arises only once.
  void* shared = ThePool().AllocateShared(arena, bytes);
  if (!shared) return block.data;
  GiveBack(block);
  return shared;
}

void* AllocateSharedOutput(size_t bytes, const std::shared_ptr<Arena>& arena) {
  return arena ? ThePool().AllocateShared(arena, bytes) : nullptr;
}

bool LendOutput(void* data) { return ThePool().Lend(data); }

bool TakeBackOutput(void* data) { return ThePool().TakeBack(data); }

void HandOverOutput(void* data) {
  if (data && MayBeShared(data)) ThePool().HandOver(data);
}

void FreeOutput(void* data) {
  if (!data) return;
  if (MayBeShared(data)) {
    if (Block block = ThePool().Return(data); block.data) {
      ThePool().Keep(std::move(block));
      return;
    }
  }
  const size_t capacity = HeaderOf(data)->capacity;
  if (capacity >= kWorthKeeping) {
    ThePool().Keep({data, capacity, nullptr});
  } else {
    std::free(HeaderOf(data)->memory);
  }
}

void AbandonOutput(void* data) {
  // Memory in an arena leaves the pool here and is never reused.
  if (!data || (MayBeShared(data) && ThePool().Return(data).data)) return;
  FreeOutput(data);
}

void LeaveOutputsToCallers(const Arena* arena) {
  if (arena) ThePool().BeforeClosing(arena);
  ThePool().Trim();
}

}  // namespace hvd
