// SPDX-License-Identifier: Apache-2.0
#include "core/output_pool.h"

#include <sys/mman.h>

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
    for (Header* one : given_up) std::free(one);
  }

  void Trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Header* one : kept_) std::free(one);
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

}  // namespace

void* AllocateOutput(size_t bytes) {
  Header* header = bytes >= kWorthKeeping ? ThePool().Take(bytes) : nullptr;
  if (!header) {
    // Fresh memory costs a fault a page: large outputs ask for large pages.
    const bool large = bytes >= kHugePage;
    const size_t alignment = large ? kHugePage : kLine;
    const size_t whole = ((kLine + bytes) / alignment + 1) * alignment;
    void* memory = std::aligned_alloc(alignment, whole);
    if (!memory) return nullptr;
    if (large) madvise(memory, whole, MADV_HUGEPAGE);
    header = new (memory) Header{whole - kLine};
  }
  return reinterpret_cast<std::byte*>(header) + kLine;
}

void FreeOutput(void* data) {
  if (!data) return;
  Header* const header = HeaderOf(data);
  if (header->capacity >= kWorthKeeping) {
    ThePool().Keep(header);
  } else {
    std::free(header);
  }
}

void TrimOutputs() { ThePool().Trim(); }

}  // namespace hvd
