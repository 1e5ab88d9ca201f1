// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace hvd {
namespace {

constexpr size_t kPage = 4096;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // exists since Linux 5.14; older kernels refuse it
#endif

std::string Reason(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// Return a descriptor of memory: a memfd, or, where seccomp forbids that, a file that is unlinked immediately.
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

Arena::Arena(int fd, std::byte* base) : fd_(fd), base_(base), process_(getpid()) {}

Arena::~Arena() {
  if (!InForkedChild()) munmap(base_, kExtent);
  CloseDescriptor();
}

// Return true in a forked child. Most of the mapping does not exist there (MADV_DONTFORK), and its addresses may be
// reused.
bool Arena::InForkedChild() const { return getpid() != process_; }

void Arena::CloseDescriptor() {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!InForkedChild()) lock.lock();
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  closed_.store(true, std::memory_order_relaxed);
}

int64_t Arena::Reserve(size_t bytes, Status* status, Use use) {
  if (bytes > kExtent) {
    *status = Status::Failed("a shared-memory arena holds at most " + std::to_string(kExtent >> 30) + " GiB");
    return -1;
  }
  bytes = (bytes + kPage - 1) / kPage * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  size_t candidate = 0;
  for (const auto& [offset, region] : used_) {
    if (offset - candidate >= bytes) break;
    candidate = offset + region.bytes;
  }
  if (candidate + bytes > kExtent) {
    *status = Status::Failed("the shared-memory arena is full: use fewer process sets or smaller HOROVOD_CHUNK_BYTES");
    return -1;
  }
  // posix_fallocate reports a full /dev/shm or cgroup here, where a fallback is possible, instead of a SIGBUS later.
  int error;
  do {
    error = posix_fallocate(fd_, static_cast<off_t>(candidate), static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error) {
    *status = Status::Failed(std::string("cannot allocate shared memory: ") + std::strerror(error));
    return -1;
  }
  if (use == Use::kTensor) madvise(base_ + candidate, bytes, MADV_DOFORK);
  if (use != Use::kOutput || madvise(base_ + candidate, bytes, MADV_POPULATE_WRITE)) {
    std::memset(base_ + candidate, 0, bytes);
  }
  used_[candidate] = {bytes, use};
  return static_cast<int64_t>(candidate);
}

void Arena::Free(int64_t offset) {
  if (offset < 0 || InForkedChild()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = used_.find(static_cast<size_t>(offset));
  if (found == used_.end()) return;
  const auto [begin, region] = *found;
  used_.erase(found);
  if (region.use == Use::kEngine) return;  // keep the pages, because a peer may be about to read them for the last time
  // Return the pages of tensors to the system if it accepts them, because tensors are large.
  [[maybe_unused]] int taken = fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                                         static_cast<off_t>(region.bytes));
  madvise(base_ + begin, region.bytes, MADV_DONTFORK);
}

bool Arena::MakePrivate(size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  auto region = used_.find(offset);
  if (fd_ < 0 || region == used_.end() || region->second.pins > 0 ||
      mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE, flags, fd_, static_cast<off_t>(offset)) == MAP_FAILED) {
    madvise(base_ + offset, bytes, MADV_DOFORK);  // for CopyInChild
    return false;
  }
  region->second.is_private = true;
  // Write to each page, so that the kernel copies it. Unlike a copy that we make ourselves, this cannot lose what
  // another thread writes meanwhile.
  for (size_t at = offset; at < offset + bytes; at += kPage) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(base_ + at), 0, __ATOMIC_RELAXED);
  }
  [[maybe_unused]] int taken =
      fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return true;
}

bool Arena::MakeShared(size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  if (fd_ < 0 ||
      mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE, flags, fd_, static_cast<off_t>(offset)) == MAP_FAILED) {
    madvise(base_ + offset, bytes, MADV_DONTNEED);  // frees the pages now, because the mapping may exist for long
    return false;
  }
  madvise(base_ + offset, bytes, MADV_DONTFORK);
  if (auto region = used_.find(offset); region != used_.end()) region->second.is_private = false;
  return true;
}

bool Arena::CopyInChild(void* address, size_t bytes) {
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;  // the child then sees the parent's changes, which is better than a crash
  std::memcpy(copy, address, bytes);
  return mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED;
}

int64_t Arena::OffsetOf(const void* address, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(base_), at = reinterpret_cast<uintptr_t>(address);
  if (at < begin || at - begin > kExtent || bytes > kExtent - (at - begin)) return -1;
  return static_cast<int64_t>(at - begin);
}

int64_t Arena::PlaceOf(const void* address, size_t bytes, Pin* pin) {
  const int64_t offset = OffsetOf(address, bytes);
  if (offset < 0) return -1;
  Pin before = std::move(*pin);  // declared here, so that it is destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  auto region = used_.upper_bound(static_cast<size_t>(offset));
  if (region == used_.begin()) return -1;
  --region;
  if (static_cast<size_t>(offset) + bytes > region->first + region->second.bytes || region->second.is_private)
    return -1;
  ++region->second.pins;
  *pin = Pin(shared_from_this(), region->first);
  return offset;
}

void Arena::Unpin(size_t region) {
  if (InForkedChild()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto found = used_.find(region); found != used_.end()) --found->second.pins;
}

}  // namespace hvd
