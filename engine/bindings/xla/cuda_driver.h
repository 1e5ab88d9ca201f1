// SPDX-License-Identifier: Apache-2.0
// Part of the CUDA driver that the handlers use directly. XLA has loaded the driver already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd::xla {

struct CudaDriver {
  int (*current_device)(int* ordinal) = nullptr;
  int (*set_bytes)(uint64_t address, unsigned char value, size_t bytes, void* stream) = nullptr;
  int (*error_name)(int code, const char** name) = nullptr;

  // Return the driver, or null if it cannot be opened.
  static const CudaDriver* Get();
  std::string NameOf(int code) const;
};

}  // namespace hvd::xla
