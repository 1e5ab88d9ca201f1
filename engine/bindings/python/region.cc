// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/region.h"

#include "bindings/python/unlocked.h"

namespace nb = nanobind;

namespace hvd_python {

std::unique_ptr<Region> Region::Allocate(hvd_world* world, int process_set, int device, uint64_t bytes) {
  hvd_status status{};
  uint64_t address = 0;
  void* owner;
  {
    Unlocked unlocked;
    owner = Api()->allocate_region(world, process_set, device, bytes, &address, &status);
  }
  if (status.code != HVD_OK) Raise(status);
  return owner ? std::make_unique<Region>(owner, address, bytes) : nullptr;
}

void BindRegion(nb::module_& module) {
  nb::class_<Region>(module, "Region").def_prop_ro("address", &Region::address).def_prop_ro("nbytes", &Region::bytes);
}

}  // namespace hvd_python
