// SPDX-License-Identifier: Apache-2.0
// Fuzz test of all code that parses bytes from another rank. libFuzzer and the unit tests use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::fuzz {

// Parse one input in every way. This must return for every input, and must not access a byte outside it or allocate
// more than a small multiple of its size. A message that decodes must encode to bytes that decode to an equal message.
void ParseEverything(const uint8_t* data, size_t size);

}  // namespace hvd::fuzz
