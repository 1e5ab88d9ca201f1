// SPDX-License-Identifier: Apache-2.0
// Memory on a device that the engine allocated for tensors; freed when no tensor uses it any more.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "bindings/python/table.h"

namespace hvd_python {

class Region {
 public:
  Region(void* owner, uint64_t address, uint64_t bytes) : owner_(owner), address_(address), bytes_(bytes) {}
  ~Region() { Api()->free_region(owner_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // Return null if the members are not known to share the device.
  static std::unique_ptr<Region> Allocate(hvd_world* world, int process_set, int device, uint64_t bytes);

 private:
  void* owner_;
  uint64_t address_, bytes_;
};

void BindRegion(nanobind::module_& module);

}  // namespace hvd_python
