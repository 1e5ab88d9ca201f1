// SPDX-License-Identifier: Apache-2.0
// Copies that bypass the caches, for results that will have left every cache before they are read. An ordinary store on
// x86 first reads the line that it is about to overwrite.
#pragma once

#include <cstddef>

namespace hvd {

// Return true if `bytes`, written on this host by one operation, exceed the last-level cache, and this processor can
// write past the cache.
bool OutgrowsCaches(size_t bytes);

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace hvd
