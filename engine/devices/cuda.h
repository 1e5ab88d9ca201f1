// SPDX-License-Identifier: Apache-2.0
// CUDA driver, opened when the first tensor on a device arrives. It is needed neither to build nor to install, and
// hosts without a GPU never load it. The declarations are the driver's stable binary interface. HIP has these functions
// under other names, so another table could be used here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd {

using CudaContext = struct CudaContextOpaque*;
using CudaStream = struct CudaStreamOpaque*;
using CudaEvent = struct CudaEventOpaque*;
using CudaModule = struct CudaModuleOpaque*;
using CudaFunction = struct CudaFunctionOpaque*;
using CudaAddress = unsigned long long;

inline CudaAddress AddressOf(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

struct CudaUuid {
  char bytes[16];
};
struct CudaHandle {  // exported handle with which another process maps the memory
  char bytes[64];
};

struct CudaCopy2d {  // parameters of a copy of rows of `width` bytes
  size_t from_x, from_y;
  int from_kind;
  const void* from_host;
  CudaAddress from_device;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  int to_kind;
  void* to_host;
  CudaAddress to_device;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};
enum : int { kCudaHost = 1, kCudaDevice = 2 };

enum CudaResult : int { kCudaSuccess = 0, kCudaOutOfMemory = 2, kCudaDeinitialized = 4, kCudaNotReady = 600 };
enum : unsigned {
  kCudaEventTimed = 0,         // with timing
  kCudaEventPlain = 2,         // without timing
  kCudaStreamNonBlocking = 1,  // the stream does not wait for the legacy stream
  kCudaPeerAccess = 1,         // maps memory of other devices too
  kCudaHostPortable = 1,       // the memory is pinned for all contexts
  kCudaHostMapped = 2,         // the memory also has an address on the device
  kCudaWaitReaches = 0,        // waits until the value is reached or passed, in arithmetic that wraps around
};
enum : int { kCudaMultiprocessors = 16, kCudaMpsEnabled = 133 };
enum : int { kCudaCaptureRelaxed = 2 };

// X(result type, name in the table, name in the library, parameters)
#define HVD_CUDA_FUNCTIONS(X)                                                                     \
  X(init, "cuInit", (unsigned))                                                                   \
  X(error_name, "cuGetErrorName", (int, const char**))                                            \
  X(error_text, "cuGetErrorString", (int, const char**))                                          \
  X(device_get, "cuDeviceGet", (int*, int))                                                       \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                            \
  X(device_uuid, "cuDeviceGetUuid", (CudaUuid*, int))                                             \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                                   \
  X(context_retain, "cuDevicePrimaryCtxRetain", (CudaContext*, int))                              \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int))                                       \
  X(context_push, "cuCtxPushCurrent_v2", (CudaContext))                                           \
  X(context_pop, "cuCtxPopCurrent_v2", (CudaContext*))                                            \
  X(context_synchronize, "cuCtxSynchronize", ())                                                  \
  X(memory_allocate, "cuMemAlloc_v2", (CudaAddress*, size_t))                                     \
  X(memory_free, "cuMemFree_v2", (CudaAddress))                                                   \
  X(host_allocate, "cuMemHostAlloc", (void**, size_t, unsigned))                                  \
  X(host_free, "cuMemFreeHost", (void*))                                                          \
  X(host_register, "cuMemHostRegister_v2", (void*, size_t, unsigned))                             \
  X(host_unregister, "cuMemHostUnregister", (void*))                                              \
  X(host_address, "cuMemHostGetDevicePointer_v2", (CudaAddress*, void*, unsigned))                \
  X(copy_down, "cuMemcpyDtoHAsync_v2", (void*, CudaAddress, size_t, CudaStream))                  \
  X(copy_up, "cuMemcpyHtoDAsync_v2", (CudaAddress, const void*, size_t, CudaStream))              \
  X(copy_on, "cuMemcpyDtoDAsync_v2", (CudaAddress, CudaAddress, size_t, CudaStream))              \
  X(copy_2d, "cuMemcpy2DAsync_v2", (const CudaCopy2d*, CudaStream))                               \
  X(stream_query, "cuStreamQuery", (CudaStream))                                                  \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                    \
  X(memory_set, "cuMemsetD8Async", (CudaAddress, unsigned char, size_t, CudaStream))              \
  X(memory_export, "cuIpcGetMemHandle", (CudaHandle*, CudaAddress))                               \
  X(memory_import, "cuIpcOpenMemHandle_v2", (CudaAddress*, CudaHandle, unsigned))                 \
  X(memory_unmap, "cuIpcCloseMemHandle", (CudaAddress))                                           \
  X(event_create, "cuEventCreate", (CudaEvent*, unsigned))                                        \
  X(event_destroy, "cuEventDestroy_v2", (CudaEvent))                                              \
  X(event_record, "cuEventRecord", (CudaEvent, CudaStream))                                       \
  X(event_query, "cuEventQuery", (CudaEvent))                                                     \
  X(event_elapsed, "cuEventElapsedTime", (float*, CudaEvent, CudaEvent))                          \
  X(stream_create, "cuStreamCreateWithPriority", (CudaStream*, unsigned, int))                    \
  X(stream_destroy, "cuStreamDestroy_v2", (CudaStream))                                           \
  X(stream_priorities, "cuCtxGetStreamPriorityRange", (int*, int*))                               \
  X(stream_wait_event, "cuStreamWaitEvent", (CudaStream, CudaEvent, unsigned))                    \
  X(stream_wait_value, "cuStreamWaitValue32_v2", (CudaStream, CudaAddress, uint32_t, unsigned))   \
  X(stream_write_value, "cuStreamWriteValue32_v2", (CudaStream, CudaAddress, uint32_t, unsigned)) \
  X(module_load, "cuModuleLoadData", (CudaModule*, const void*))                                  \
  X(module_unload, "cuModuleUnload", (CudaModule))                                                \
  X(module_function, "cuModuleGetFunction", (CudaFunction*, CudaModule, const char*))             \
  X(launch, "cuLaunchKernel",                                                                     \
    (CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CudaStream, void**, void**))

struct Cuda {
#define HVD_CUDA_MEMBER(member, name, parameters) int(*member) parameters = nullptr;
  HVD_CUDA_FUNCTIONS(HVD_CUDA_MEMBER)
#undef HVD_CUDA_MEMBER

  // Return the driver of this process, or null with the reason in `why`. The first call opens it and may take a while.
  static const Cuda* Open(std::string* why);
  // Return e.g. "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered".
  std::string Describe(int result) const;
};

}  // namespace hvd
