// SPDX-License-Identifier: Apache-2.0
#include "core/output_pool.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace hvd {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kWorthKeeping = size_t{128} << 10;  // below, malloc reuses memory well enough
constexpr size_t kKeptBytes = size_t{128} << 20;
constexpr size_t kKeptBuffers = 8;

struct Header {  // in the line before the data
  size_t capacity;
  void* memory;  // as it came from malloc
};
static_assert(sizeof(Header) <= kLine);

Header* HeaderOf(void* data) { return reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kLine); }

class Pool {
 public:
  // One that fits and is not much larger than it must be.
  Header* Take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = kept_.size(); i-- > 0;) {
      Header* const header = kept_[i];
      if (header->capacity < bytes || header->capacity - bytes > bytes / 4) continue;
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= header->capacity;
      return header;
    }
    return nullptr;
  }

  void Keep(Header* header) {
    std::vector<Header*> given_up;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      kept_.push_back(header);
      kept_bytes_ += header->capacity;
      while (kept_bytes_ > kKeptBytes || kept_.size() > kKeptBuffers) {  // the oldest goes first
        given_up.push_back(kept_.front());
        kept_bytes_ -= kept_.front()->capacity;
        kept_.erase(kept_.begin());
      }
    }
    for (Header* one : given_up) std::free(one->memory);
  }

  void Trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Header* one : kept_) std::free(one->memory);
    kept_.clear();
    kept_bytes_ = 0;
  }

 private:
  std::mutex mutex_;
  std::vector<Header*> kept_;
  size_t kept_bytes_ = 0;
};

// Never destroyed: outputs may be freed while the process ends.
Pool& ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

// Fresh memory costs a fault a page: large outputs ask for large pages.
Header* AllocateLarge(size_t bytes) {
  const size_t whole = ((kLine + bytes) / kHugePage + 1) * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, whole);
  if (!memory) return nullptr;
  madvise(memory, whole, MADV_HUGEPAGE);
  return new (memory) Header{whole - kLine, memory};
}

// Aligned by hand: malloc has small pieces at hand, aligned_alloc looks for one each time.
Header* AllocateSmall(size_t bytes) {
  const size_t capacity = (bytes / kLine + 1) * kLine;
  void* memory = std::malloc(capacity + 2 * kLine);
  if (!memory) return nullptr;
  const uintptr_t line = (reinterpret_cast<uintptr_t>(memory) + kLine - 1) / kLine * kLine;
  return new (reinterpret_cast<void*>(line)) Header{capacity, memory};
}

}  // namespace

void* AllocateOutput(size_t bytes) {
  Header* header = bytes >= kWorthKeeping ? ThePool().Take(bytes) : nullptr;
  if (!header) {
    header = bytes >= kHugePage ? AllocateLarge(bytes) : AllocateSmall(bytes);
    if (!header) return nullptr;
  }
  return reinterpret_cast<std::byte*>(header) + kLine;
}

void FreeOutput(void* data) {
  if (!data) return;
  Header* const header = HeaderOf(data);
  if (header->capacity >= kWorthKeeping) {
    ThePool().Keep(header);
  } else {
    std::free(header->memory);
  }
}

void TrimOutputs() { ThePool().Trim(); }

}  // namespace hvd
