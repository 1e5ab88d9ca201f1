// SPDX-License-Identifier: Apache-2.0
// Copies that do not pass through the caches, for results that no cache will hold until somebody reads them. An
// ordinary store on x86 first reads the line that it is about to overwrite.
#pragma once

#include <cstddef>

namespace hvd {

// Whether this many bytes, written on this host by one operation, are more than the last cache holds, and this
// processor can write past it.
bool OutgrowsCaches(size_t bytes);

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace hvd
