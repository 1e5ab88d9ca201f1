// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/cuda_driver.h"

#include <dlfcn.h>

namespace hvd::xla {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

const CudaDriver* Open() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  auto* const driver = new CudaDriver;
  const bool found = library && Find(library, "cuCtxGetDevice", &driver->current_device) &&
                     Find(library, "cuMemsetD8Async", &driver->set_bytes) &&
                     Find(library, "cuGetErrorName", &driver->error_name);
  if (found) return driver;
  delete driver;
  return nullptr;
}

}  // namespace

const CudaDriver* CudaDriver::Get() {
  static const CudaDriver* const driver = Open();
  return driver;
}

std::string CudaDriver::NameOf(int code) const {
  const char* name = nullptr;
  return error_name(code, &name) == 0 && name ? name : "CUDA error " + std::to_string(code);
}

}  // namespace hvd::xla
