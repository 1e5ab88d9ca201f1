// SPDX-License-Identifier: Apache-2.0
// Memory of the stand-in: that of its devices, of other processes' devices, and host memory that a device can access.
#include "driver.h"

using namespace standin;

namespace {

struct Side {  // source or destination of a copy of rows
  size_t x, y;
  int kind;  // 1: memory of the host; 2: memory of a device
  uint8_t* host;
  uint8_t* device;
  void* array;
  size_t pitch;

  uint8_t* Row(size_t row) const { return (kind == 1 ? host : device) + (y + row) * pitch + x; }
};
struct Copy2d {
  Side from, to;
  size_t width, height;
};

bool IsMine(const Handle& handle) {
  for (int device = 0; device < kDevices; ++device) {
    if (std::memcmp(UuidOf(device).bytes, handle.uuid, sizeof handle.uuid) == 0) return true;
  }
  return false;
}

}  // namespace

extern "C" {

int cuMemAlloc_v2(Address* address, size_t bytes) {
  ENTER("cuMemAlloc_v2");
  if (bytes == 0) return kInvalidValue;
  auto memory = Shared::Create(bytes, UuidOf(TheContext()->device).bytes);
  if (!memory) return kOutOfMemory;
  memory->PoisonAtEnd();
  // Fill with garbage, so that no caller can rely on zeros.
  std::memset(memory->data(), 0xA5, std::min(bytes, size_t{1} << 20));
  *address = reinterpret_cast<Address>(memory->data());
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().memory[*address] = std::move(memory);
  return kSuccess;
}

int cuMemFree_v2(Address address) {
  ENTER("cuMemFree_v2");
  WaitForAll();
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().memory.erase(address) ? kSuccess : kInvalidValue;
}

int cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  ENTER("cuMemHostAlloc");
  *data = std::aligned_alloc(standin::kPage, (bytes + standin::kPage - 1) / standin::kPage * standin::kPage);
  if (!*data) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().host.insert(*data);
  return kSuccess;
}

int cuMemFreeHost(void* data) {
  ENTER("cuMemFreeHost");
  WaitForAll();
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().host.erase(data)) return kInvalidValue;
  std::free(data);
  return kSuccess;
}

int cuMemsetD8Async(Address address, unsigned char value, size_t bytes, void* stream) {
  ENTER("cuMemsetD8Async");
  StreamOf(stream)->Put([=] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
  return kSuccess;
}

int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  StreamOf(stream)->Put([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  ENTER("cuMemcpyHtoDAsync_v2");
  StreamOf(stream)->Put([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return kSuccess;
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  ENTER("cuMemcpyDtoDAsync_v2");
  StreamOf(stream)->Put([=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
  return kSuccess;
}

int cuMemcpy2DAsync_v2(const Copy2d* copy, void* stream) {
  ENTER("cuMemcpy2DAsync_v2");
  StreamOf(stream)->Put([copy = *copy] {
    for (size_t row = 0; row < copy.height; ++row) std::memcpy(copy.to.Row(row), copy.from.Row(row), copy.width);
  });
  return kSuccess;
}

int cuIpcGetMemHandle(Handle* handle, Address address) {
  ENTER("cuIpcGetMemHandle");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  const auto found = Driver::Get().memory.find(address);
  if (found == Driver::Get().memory.end()) return kInvalidValue;
  *handle = found->second->handle();
  return kSuccess;
}

int cuIpcOpenMemHandle_v2(Address* address, Handle handle, unsigned) {
  ENTER("cuIpcOpenMemHandle_v2");
  if (handle.process == getpid()) return kInvalidContext;
  if (!IsMine(handle)) return kPeerUnsupported;
  auto memory = Shared::Open(handle);
  if (!memory) return kInvalidHandle;
  *address = reinterpret_cast<Address>(memory->data());
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().mapped[*address] = std::move(memory);
  return kSuccess;
}

int cuIpcCloseMemHandle(Address address) {
  ENTER("cuIpcCloseMemHandle");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().mapped.erase(address) ? kSuccess : kInvalidValue;
}

// ---- host pages that a device can access, and values in them

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  ENTER("cuMemHostRegister_v2");
  const auto page = reinterpret_cast<uintptr_t>(address);
  if (page % 4096 || bytes % 4096) return kInvalidValue;
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().registered.insert(address).second ? kSuccess : kAlreadyRegistered;
}

int cuMemHostUnregister(void* address) {
  ENTER("cuMemHostUnregister");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().registered.erase(address) ? kSuccess : kInvalidValue;
}

int cuMemHostGetDevicePointer_v2(Address* address, void* host, unsigned) {
  ENTER("cuMemHostGetDevicePointer_v2");
  *address = reinterpret_cast<Address>(host);
  return kSuccess;
}

}  // extern "C"
