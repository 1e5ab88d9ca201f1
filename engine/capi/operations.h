// SPDX-License-Identifier: Apache-2.0
// Operations as clients describe them, those of older versions too: these know fewer fields, and their structs are
// shorter.
#pragma once

#include <hvd/engine.h>

#include <cstdint>

#include "core/world.h"

namespace hvd {

// One of several that lie one after the other.
const hvd_op& OpAt(const hvd_op* ops, int32_t i);
// -1: the tensor is in host memory.
int32_t DeviceOf(const hvd_op& op);
uint64_t StreamOf(const hvd_op& op);
bool AreOnOneStream(const hvd_op& one, const hvd_op& other);

// What a client got wrong, if anything.
Status CheckOp(const hvd_op& op);
// `group`: null, or the name of what all `count` of them belong to.
void ConvertOp(const hvd_op& op, const World& world, int32_t process_set, const char* group, int32_t count,
               Operation* operation);

}  // namespace hvd
