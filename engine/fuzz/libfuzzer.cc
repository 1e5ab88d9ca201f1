// SPDX-License-Identifier: Apache-2.0
// scripts/fuzz builds this with clang's libFuzzer.
#include "fuzz/wire_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvd::fuzz::ParseEverything(data, size);
  return 0;
}
