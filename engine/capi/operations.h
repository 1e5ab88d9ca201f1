// SPDX-License-Identifier: Apache-2.0
// Conversion of operations from the C API. Older clients pass shorter structs, which lack the newer fields.
#pragma once

#include <hvd/engine.h>

#include <cstdint>

#include "core/world.h"

namespace hvd {

// Return an element of an array whose elements have the client's struct size.
const hvd_op& OpAt(const hvd_op* ops, int32_t i);
// Return the device, or -1 if the tensor is in host memory.
int32_t DeviceOf(const hvd_op& op);
uint64_t StreamOf(const hvd_op& op);
bool AreOnOneStream(const hvd_op& one, const hvd_op& other);

// Return an error if the client's description is invalid.
Status CheckOp(const hvd_op& op);
// Convert an operation. `group`: name of the group of `count` operations, or null.
void ConvertOp(const hvd_op& op, const World& world, int32_t process_set, const char* group, int32_t count,
               Operation* operation);

}  // namespace hvd
