// SPDX-License-Identifier: Apache-2.0
// Memory for tensors that the engine owns: in this rank's arena, where local peers reach it and collectives need no
// staging, or ordinary memory if there is no shared memory. It may outlive its world: the arena stays mapped until its
// last buffer is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "memory/arena.h"

namespace hvd {

class Buffer {
 public:
  static constexpr size_t kAlignment = 4096;

  // Allocate a buffer. `arena` may be null. Return null if there is no memory at all.
  static std::unique_ptr<Buffer> Allocate(std::shared_ptr<Arena> arena, size_t bytes) {
    bytes = bytes ? bytes : 1;
    Status no_room;
    const int64_t offset = arena ? arena->Reserve(bytes, &no_room, Arena::Use::kTensor) : -1;
    if (offset >= 0) {
      std::byte* data = arena->at(static_cast<size_t>(offset));
      return std::unique_ptr<Buffer>(new Buffer(std::move(arena), offset, data));
    }
    if (bytes > SIZE_MAX - kAlignment) return nullptr;
    void* plain = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    return plain ? std::unique_ptr<Buffer>(new Buffer(nullptr, -1, static_cast<std::byte*>(plain))) : nullptr;
  }
  ~Buffer() {
    if (arena_) {
      arena_->Free(offset_);
    } else {
      std::free(data_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  bool shared() const { return arena_ != nullptr; }

 private:
  Buffer(std::shared_ptr<Arena> arena, int64_t offset, std::byte* data)
      : arena_(std::move(arena)), offset_(offset), data_(data) {}

  std::shared_ptr<Arena> arena_;
  int64_t offset_;
  std::byte* data_;
};

}  // namespace hvd
