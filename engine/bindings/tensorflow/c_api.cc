// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensorflow/c_api.h"

#include <dlfcn.h>

namespace hvd::tensorflow {
namespace {

Library LookUp() {
  // Search this library, which contains all functions and which the Python package has loaded earlier, with any flags.
  void* framework = dlopen("libtensorflow_framework.so.2", RTLD_NOLOAD | RTLD_LAZY);
  if (!framework) framework = dlopen("libtensorflow_framework.2.dylib", RTLD_NOLOAD | RTLD_LAZY);
  if (!framework) framework = RTLD_DEFAULT;
  Library library;
#define HVD_LOOK_UP(result, name, parameters)                                       \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(framework, #name)); \
  if (!library.name && !library.missing) library.missing = #name;
  HVD_TENSORFLOW_FUNCTIONS(HVD_LOOK_UP)
#undef HVD_LOOK_UP
  return library;
}

}  // namespace

const Library& Tf() {
  static const Library library = LookUp();
  return library;
}

}  // namespace hvd::tensorflow

extern "C" __attribute__((visibility("default"))) const char* hvd_tensorflow_missing() {
  return hvd::tensorflow::Tf().missing;
}
