// SPDX-License-Identifier: Apache-2.0
#include "devices/cuda.h"

#include <dlfcn.h>

#include <mutex>

namespace hvd {
namespace {

struct Opened {
  Cuda functions;
  std::string why;
  bool usable = false;
};

void OpenOnce(Opened* opened) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const text = dlerror();
    opened->why = text ? text : "libcuda.so.1 cannot be opened";
    return;
  }
#define HVD_CUDA_FIND(member, name, parameters)                                                    \
  opened->functions.member = reinterpret_cast<int(*) parameters>(dlsym(library, name));            \
  if (!opened->functions.member) {                                                                 \
    opened->why = std::string("the CUDA driver is too old: libcuda.so.1 has no function ") + name; \
    return;                                                                                        \
  }
  HVD_CUDA_FUNCTIONS(HVD_CUDA_FIND)
#undef HVD_CUDA_FIND
  if (const int result = opened->functions.init(0); result != kCudaSuccess) {
    opened->why = "the CUDA driver cannot be started: " + opened->functions.Describe(result);
    return;
  }
  opened->usable = true;
}

}  // namespace

const Cuda* Cuda::Open(std::string* why) {
  static Opened opened;
  static std::once_flag once;
  std::call_once(once, OpenOnce, &opened);
  if (opened.usable) return &opened.functions;
  *why = opened.why;
  return nullptr;
}

std::string Cuda::Describe(int result) const {
  const char *name = nullptr, *text = nullptr;
  if (error_name(result, &name) != kCudaSuccess || !name) return "CUDA error " + std::to_string(result);
  if (error_text(result, &text) != kCudaSuccess || !text) return name;
  return std::string(name) + ": " + text;
}

}  // namespace hvd
