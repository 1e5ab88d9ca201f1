// SPDX-License-Identifier: Apache-2.0
// Memory that another process can open by a handle. It has no name in any file system: the handle names the process in
// which it is open. The memory disappears when the last process that has it ends, however it ends.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace standin {

constexpr size_t kPage = 4096;
constexpr size_t kPoisoned = size_t{16} << 20;

struct Handle {
  int32_t process, descriptor;
  uint64_t number;  // verifies the memory, because the descriptor's number may have been reused
  uint64_t bytes;
  char uuid[16];
  char unused[24];
};
static_assert(sizeof(Handle) == 64, "as large as the driver's");

class Shared {
 public:
  static std::shared_ptr<Shared> Create(size_t bytes, const char* uuid) {
    static std::atomic<uint64_t> numbers{1};
    const int descriptor = memfd_create("standin", MFD_CLOEXEC);
    if (descriptor < 0) return nullptr;
    const uint64_t number = (static_cast<uint64_t>(getpid()) << 32) + numbers++;
    auto made = ftruncate(descriptor, static_cast<off_t>(kPage + bytes)) == 0 ? Map(descriptor, bytes) : nullptr;
    if (!made) {
      close(descriptor);
      return nullptr;
    }
    std::memcpy(made->base_, &number, sizeof number);
    made->handle_ = {getpid(), descriptor, number, bytes, {}, {}};
    std::memcpy(made->handle_.uuid, uuid, sizeof made->handle_.uuid);
    return made;
  }

  static std::shared_ptr<Shared> Open(const Handle& handle) {
    const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
    const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return nullptr;
    uint64_t number = 0;
    const bool found = pread(descriptor, &number, sizeof number, 0) == sizeof number && number == handle.number;
    auto opened = found ? Map(descriptor, handle.bytes) : nullptr;
    close(descriptor);
    if (opened) opened->handle_.descriptor = -1;
    return opened;
  }

  // Free the memory. Later accesses of this process crash, and other processes find garbage.
  ~Shared() {
    if (handle_.descriptor >= 0) {
      if (poisons_) std::memset(data(), 0xCD, std::min(bytes_, kPoisoned));
      close(handle_.descriptor);
    }
    munmap(base_, kPage + bytes_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void PoisonAtEnd() { poisons_ = true; }
  uint8_t* data() const { return base_ + kPage; }
  size_t bytes() const { return bytes_; }
  const Handle& handle() const { return handle_; }

 private:
  Shared(uint8_t* base, size_t bytes) : base_(base), bytes_(bytes) {}

  static std::shared_ptr<Shared> Map(int descriptor, size_t bytes) {
    void* const base = mmap(nullptr, kPage + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) return nullptr;
    return std::shared_ptr<Shared>(new Shared(static_cast<uint8_t*>(base), bytes));
  }

  uint8_t* base_;
  size_t bytes_;
  bool poisons_ = false;
  Handle handle_{};
};

}  // namespace standin
