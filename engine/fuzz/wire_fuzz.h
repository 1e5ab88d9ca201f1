// SPDX-License-Identifier: Apache-2.0
// Everything that parses bytes from another rank, fed with one input. Used by libFuzzer and by the unit tests alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::fuzz {

// Must return for every input, without touching a byte outside it or allocating beyond a small multiple of its size.
// What decodes must encode to something that decodes to the same again.
void ParseEverything(const uint8_t* data, size_t size);

}  // namespace hvd::fuzz
