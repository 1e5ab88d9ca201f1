// SPDX-License-Identifier: Apache-2.0
// What the handlers themselves need of the CUDA driver, which is there: XLA has opened it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd::xla {

struct CudaDriver {
  int (*current_device)(int* ordinal) = nullptr;
  int (*set_bytes)(uint64_t address, unsigned char value, size_t bytes, void* stream) = nullptr;
  int (*error_name)(int code, const char** name) = nullptr;

  // Null if it cannot be opened.
  static const CudaDriver* Get();
  std::string NameOf(int code) const;
};

}  // namespace hvd::xla
