// SPDX-License-Identifier: Apache-2.0
// The engine's kernels, compiled for the processor, by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace standin {

struct Kernel {
  size_t task_bytes;
  void (*run)(const void* task, uint64_t threads);
};

inline std::map<std::string, Kernel>& Kernels() {
  static auto* const kernels = new std::map<std::string, Kernel>;
  return *kernels;
}

}  // namespace standin

#define HVD_INLINE inline
// Run the last thread first, because a device guarantees no order of threads.
#define HVD_KERNEL(name, Task, body)                               \
  static void name(const void* task, uint64_t threads) {           \
    for (uint64_t thread = threads; thread-- > 0;) {               \
      body(*static_cast<const hvd::Task*>(task), thread, threads); \
    }                                                              \
  }                                                                \
  static const bool name##_is_known =                              \
      standin::Kernels().emplace(#name, standin::Kernel{sizeof(hvd::Task), name}).second;

#include "devices/kernels.cu"
