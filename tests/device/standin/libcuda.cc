// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA driver on a machine without a GPU: the functions that the engine calls, on host memory. This
// file has the driver itself, its devices and contexts. Memory, streams and kernels are in libcuda_*.cc.
#include "driver.h"

using namespace standin;

namespace {

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
    {kCapturing, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
};

const Named* Find(int code) {
  for (const Named& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

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

// With STANDIN_MPS=1, pretend that MPS is enabled, so that processes do not take turns on the GPU.
int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER_ANYWHERE("cuDeviceGetAttribute");
  *value = attribute == kMpsEnabled ? static_cast<int>(Variable("STANDIN_MPS", 0)) : 4;
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

int cuCtxSynchronize() {
  ENTER("cuCtxSynchronize");
  WaitForAll();
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  ENTER("cuCtxGetDevice");
  *device = TheContext()->device;
  return kSuccess;
}

// ---- for tests alone

// Return the number of objects: memory, mapped (memory of other processes), host, events, streams, modules or contexts.
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

// Add failures in the syntax of STANDIN_FAIL.
void standin_fail(const char* rules) { Faults::Get().Arm(rules); }

}  // extern "C"
