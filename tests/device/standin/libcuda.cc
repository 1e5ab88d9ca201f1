// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA driver on a machine without a GPU: the functions that the engine calls, on memory of the host.
// What it is strict about is what hardware forgives until it does not: the current context, whose stream and event it
// is, memory that was freed, and work that is not done yet. Two devices, which reach each other's memory.
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "faults.h"
#include "kernels.h"
#include "shared.h"
#include "streams.h"

namespace {

using standin::Event;
using standin::Faults;
using standin::Handle;
using standin::Kernel;
using standin::Shared;
using standin::Stream;

using Address = unsigned long long;
constexpr int kDevices = 2;
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kAlreadyRegistered = 712,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kPeerUnsupported = 217,
  kInvalidPtx = 218,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
};

struct Uuid {
  char bytes[16];
};
struct Context {
  int device = 0;
  int users = 0;
  Stream* null_stream = nullptr;
};
struct Module {};
struct Side {  // of a copy of rows
  size_t x, y;
  int kind;  // 1: memory of the host, 2: of a device
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

struct Driver {
  std::mutex mutex;  // guards what follows
  bool initialized = false;
  Context contexts[kDevices];
  std::map<Address, std::shared_ptr<Shared>> memory, mapped;
  std::set<void*> host, registered;
  std::set<const Event*> events;
  std::set<const Stream*> streams;
  std::set<const Module*> modules;

  static Driver& Get() {
    static Driver* const driver = new Driver;  // threads may still run at the end
    return *driver;
  }
};

std::vector<Context*>& Current() {
  static thread_local std::vector<Context*> contexts;
  return contexts;
}
Context* TheContext() { return Current().empty() ? nullptr : Current().back(); }

// The same for all processes, unless STANDIN_UUID says whose device it is.
Uuid UuidOf(int device) {
  Uuid uuid{};
  const char* const text = std::getenv("STANDIN_UUID");
  std::snprintf(uuid.bytes, sizeof uuid.bytes, "%.13s/%d", text ? text : "stand-in", device);
  return uuid;
}

bool IsMine(const Handle& handle) {
  for (int device = 0; device < kDevices; ++device) {
    if (std::memcmp(UuidOf(device).bytes, handle.uuid, sizeof handle.uuid) == 0) return true;
  }
  return false;
}

int Enter(const char* function, bool needs_context = true) {
  if (const int result = Faults::Get().Enter(function)) return result;
  if (!Driver::Get().initialized) return kNotInitialized;
  return needs_context && !TheContext() ? kInvalidContext : kSuccess;
}

Stream* StreamOf(void* stream) {
  if (stream) return static_cast<Stream*>(stream);
  Context* const context = TheContext();
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!context->null_stream) context->null_stream = new Stream(context->device);
  return context->null_stream;
}

bool IsAlive(const Stream* stream) {
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  return driver.streams.count(stream) || stream == driver.contexts[stream->device()].null_stream;
}

bool IsAlive(const Event* event) {
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().events.count(event) != 0;
}

// Freeing memory waits for all that the process has put on streams, as the driver does.
void WaitForAll() {
  Driver& driver = Driver::Get();
  std::vector<const Stream*> all;
  {
    std::lock_guard<std::mutex> lock(driver.mutex);
    all.assign(driver.streams.begin(), driver.streams.end());
    for (const Context& context : driver.contexts) {
      if (context.null_stream) all.push_back(context.null_stream);
    }
  }
  for (const Stream* stream : all) stream->Wait();
}

int Keep(void** result, std::shared_ptr<Shared> memory) {
  if (!memory) return kOutOfMemory;
  auto* const event = new Event(TheContext()->device, std::move(memory));
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().events.insert(event);
  *result = event;
  return kSuccess;
}

struct Named {
  int code;
  const char *name, *text;
};
constexpr Named kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kPeerUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
};

const Named* Find(int code) {
  for (const Named& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

#define ENTER(function) \
  if (const int refused = Enter(function)) return refused
#define ENTER_ANYWHERE(function) \
  if (const int refused = Enter(function, false)) return refused

extern "C" {

// ---- the driver and its devices

int cuInit(unsigned) {
  if (const int result = Faults::Get().Enter("cuInit")) return result;
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  for (int device = 0; device < kDevices; ++device) driver.contexts[device].device = device;
  driver.initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 12000;
  return kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  const Named* const error = Find(code);
  *name = error ? error->name : nullptr;
  return error ? kSuccess : kInvalidValue;
}

int cuGetErrorString(int code, const char** text) {
  const Named* const error = Find(code);
  *text = error ? error->text : nullptr;
  return error ? kSuccess : kInvalidValue;
}

int cuDeviceCanAccessPeer(int* can, int, int) {
  ENTER_ANYWHERE("cuDeviceCanAccessPeer");
  *can = 1;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  ENTER_ANYWHERE("cuDeviceGetCount");
  *count = kDevices;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  ENTER_ANYWHERE("cuDeviceGet");
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetName(char* name, int bytes, int) {
  ENTER_ANYWHERE("cuDeviceGetName");
  std::snprintf(name, static_cast<size_t>(bytes), "Stand-in");
  return kSuccess;
}

int cuDeviceGetUuid(Uuid* uuid, int device) {
  ENTER_ANYWHERE("cuDeviceGetUuid");
  *uuid = UuidOf(device);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int, int) {
  ENTER_ANYWHERE("cuDeviceGetAttribute");
  *value = 4;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER_ANYWHERE("cuDevicePrimaryCtxRetain");
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  *context = &driver.contexts[device];
  ++(*context)->users;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER_ANYWHERE("cuDevicePrimaryCtxRelease_v2");
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  if (driver.contexts[device].users == 0) return kInvalidContext;
  --driver.contexts[device].users;
  return kSuccess;
}

int cuCtxPushCurrent_v2(Context* context) {
  ENTER_ANYWHERE("cuCtxPushCurrent_v2");
  if (!context || context->users == 0) return kInvalidContext;
  Current().push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(Context** context) {
  if (Current().empty()) return kInvalidContext;
  *context = Current().back();
  Current().pop_back();
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  ENTER("cuCtxGetDevice");
  *device = TheContext()->device;
  return kSuccess;
}

// ---- memory

int cuMemAlloc_v2(Address* address, size_t bytes) {
  ENTER("cuMemAlloc_v2");
  if (bytes == 0) return kInvalidValue;
  auto memory = Shared::Create(bytes, UuidOf(TheContext()->device).bytes);
  if (!memory) return kOutOfMemory;
  memory->PoisonAtEnd();
  std::memset(memory->data(), 0xA5, std::min(bytes, size_t{1} << 20));  // nobody may count on zeros
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

// ---- pages of the host that a device reaches, and values in them

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

int cuStreamWaitValue32_v2(void* stream, Address address, uint32_t value, unsigned) {
  ENTER("cuStreamWaitValue32_v2");
  StreamOf(stream)->Put([address, value] {
    const auto reached = [&] {
      const uint32_t now = reinterpret_cast<std::atomic<uint32_t>*>(address)->load();
      return static_cast<int32_t>(now - value) >= 0 || Faults::Get().broken();
    };
    standin::Await(reached);
  });
  return kSuccess;
}

int cuStreamWriteValue32_v2(void* stream, Address address, uint32_t value, unsigned) {
  ENTER("cuStreamWriteValue32_v2");
  StreamOf(stream)->Put([address, value] { reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value); });
  return kSuccess;
}

// ---- events

int cuEventCreate(void** event, unsigned) {
  ENTER("cuEventCreate");
  return Keep(event, Shared::Create(sizeof(uint64_t) * 3, UuidOf(TheContext()->device).bytes));
}

int cuEventDestroy_v2(Event* event) {
  ENTER("cuEventDestroy_v2");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().events.erase(event)) return kInvalidHandle;
  delete event;
  return kSuccess;
}

int cuEventRecord(const Event* event, void* stream) {
  ENTER("cuEventRecord");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(event) || !IsAlive(on) || event->device() != on->device()) return kInvalidHandle;
  event->Record(on);
  return kSuccess;
}

int cuEventElapsedTime(float* ms, const Event* began, const Event* ended) {
  ENTER("cuEventElapsedTime");
  if (!IsAlive(began) || !IsAlive(ended)) return kInvalidHandle;
  if (!began->IsDone() || !ended->IsDone()) return kNotReady;
  *ms = static_cast<float>(ended->at_ns() - began->at_ns()) / 1e6f;
  return kSuccess;
}

int cuEventQuery(const Event* event) {
  ENTER("cuEventQuery");
  if (!IsAlive(event)) return kInvalidHandle;
  return event->IsDone() ? kSuccess : kNotReady;
}

int cuEventSynchronize(const Event* event) {
  ENTER("cuEventSynchronize");
  if (!IsAlive(event)) return kInvalidHandle;
  standin::Await([&] { return event->IsDone() || Faults::Get().broken(); });
  return Enter("cuEventSynchronize");
}

// ---- streams

int cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  ENTER("cuStreamCreateWithPriority");
  *stream = new Stream(TheContext()->device);
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().streams.insert(*stream);
  return kSuccess;
}

int cuStreamDestroy_v2(Stream* stream) {
  ENTER("cuStreamDestroy_v2");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().streams.erase(stream)) return kInvalidHandle;
  delete stream;  // what is on it is still done
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER("cuCtxGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

int cuStreamWaitEvent(void* stream, const Event* event, unsigned) {
  ENTER("cuStreamWaitEvent");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(event) || !IsAlive(on)) return kInvalidHandle;
  event->KeepWaiting(on);
  return kSuccess;
}

int cuStreamQuery(void* stream) {
  ENTER("cuStreamQuery");
  return StreamOf(stream)->IsDone() ? kSuccess : kNotReady;
}

int cuStreamSynchronize(void* stream) {
  ENTER("cuStreamSynchronize");
  StreamOf(stream)->Wait();
  return Enter("cuStreamSynchronize");
}

// ---- kernels

int cuModuleLoadData(Module** module, const char* image) {
  ENTER("cuModuleLoadData");
  if (std::strncmp(image, ".version ", 9) != 0 || !std::strstr(image, "\n.target sm_")) return kInvalidPtx;
  *module = new Module;
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().modules.insert(*module);
  return kSuccess;
}

int cuModuleUnload(Module* module) {
  ENTER("cuModuleUnload");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().modules.erase(module)) return kInvalidHandle;
  delete module;
  return kSuccess;
}

int cuModuleGetFunction(const Kernel** function, Module*, const char* name) {
  ENTER("cuModuleGetFunction");
  const auto found = standin::Kernels().find(name);
  if (found == standin::Kernels().end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}

int cuLaunchKernel(const Kernel* kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, void* stream, void** parameters, void**) {
  ENTER("cuLaunchKernel");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(on) || on->device() != TheContext()->device) return kInvalidHandle;
  const auto* const begin = static_cast<const char*>(parameters[0]);
  const uint64_t all = static_cast<uint64_t>(blocks) * threads;
  on->Put(
      [kernel, all, task = std::vector<char>(begin, begin + kernel->task_bytes)] { kernel->run(task.data(), all); });
  return kSuccess;
}

// ---- for tests alone

// How many there are of memory, mapped (of other processes), host, events, streams, modules, contexts.
long standin_live(const char* kind) {
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  const std::map<std::string, size_t> counts = {
      {"memory", driver.memory.size()},
      {"mapped", driver.mapped.size()},
      {"host", driver.host.size() + driver.registered.size()},
      {"events", driver.events.size()},
      {"streams", driver.streams.size()},
      {"modules", driver.modules.size()},
      {"contexts", static_cast<size_t>(driver.contexts[0].users + driver.contexts[1].users)},
  };
  const auto found = counts.find(kind);
  return found == counts.end() ? -1 : static_cast<long>(found->second);
}

// Copies on a stream, so long after it is its turn. Both ends must stay.
int standin_copy(void* to, const void* from, size_t bytes, long delay_us, void* stream) {
  ENTER("standin_copy");
  StreamOf(stream)->Put([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    std::memcpy(to, from, bytes);
  });
  return kSuccess;
}

// Runs on a stream: the stand-in for NCCL puts its work there.
int standin_put(void* stream, void (*run)(void*), void* argument) {
  ENTER("standin_put");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(on) || on->device() != TheContext()->device) return kInvalidHandle;
  on->Put([run, argument] { run(argument); });
  return kSuccess;
}

// Like STANDIN_FAIL, from now on.
void standin_fail(const char* rules) { Faults::Get().Arm(rules); }

}  // extern "C"
