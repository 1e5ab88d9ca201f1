// SPDX-License-Identifier: Apache-2.0
#include "transport/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace hvd {
namespace {

constexpr size_t kPage = 4096;

std::string Reason(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// memfd first; where it is refused (seccomp), a file that is unlinked before anybody else could see it.
int OpenMemory() {
  int fd = memfd_create("khorovod", MFD_CLOEXEC);
  if (fd >= 0) return fd;
  fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  char path[] = "/dev/shm/khorovod-XXXXXX";
  fd = mkostemp(path, O_CLOEXEC);
  if (fd >= 0) unlink(path);
  return fd;
}

std::byte* MapWhole(int fd) {
  void* base = mmap(nullptr, Arena::kExtent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, Arena::kExtent, MADV_DONTFORK);
  return static_cast<std::byte*>(base);
}

}  // namespace

std::unique_ptr<Arena> Arena::Create(Status* status) {
  int fd = OpenMemory();
  if (fd < 0) {
    *status = Status::Failed(Reason("no shared memory (memfd_create and /dev/shm both refused)"));
    return nullptr;
  }
  std::byte* base = MapWhole(fd);
  if (!base) {
    *status = Status::Failed(Reason("cannot map shared memory"));
    close(fd);
    return nullptr;
  }
  return std::unique_ptr<Arena>(new Arena(fd, base));
}

std::unique_ptr<Arena> Arena::Map(int fd, Status* status) {
  std::byte* base = MapWhole(fd);
  if (!base) {
    *status = Status::Failed(Reason("cannot map a peer's shared memory"));
    close(fd);
    return nullptr;
  }
  return std::unique_ptr<Arena>(new Arena(fd, base));
}

Arena::~Arena() {
  munmap(base_, kExtent);
  CloseDescriptor();
}

void Arena::CloseDescriptor() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int64_t Arena::Reserve(size_t bytes, Status* status) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  size_t candidate = 0;
  for (const auto& [offset, size] : used_) {
    if (offset - candidate >= bytes) break;
    candidate = offset + size;
  }
  if (candidate + bytes > kExtent) {
    *status = Status::Failed("the shared-memory arena is full: fewer process sets, or a smaller HOROVOD_CHUNK_BYTES");
    return -1;
  }
  if (candidate + bytes > end_) {
    // posix_fallocate reports a full /dev/shm or cgroup here, where we can still fall back, not as SIGBUS later.
    int error = posix_fallocate(fd_, static_cast<off_t>(end_), static_cast<off_t>(candidate + bytes - end_));
    if (error) {
      *status = Status::Failed(std::string("cannot allocate shared memory: ") + std::strerror(error));
      return -1;
    }
    end_ = candidate + bytes;
  }
  std::memset(base_ + candidate, 0, bytes);
  used_[candidate] = bytes;
  return static_cast<int64_t>(candidate);
}

void Arena::Free(int64_t offset) {
  if (offset >= 0) used_.erase(static_cast<size_t>(offset));
}

}  // namespace hvd
