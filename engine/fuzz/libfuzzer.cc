// SPDX-License-Identifier: Apache-2.0
// Entry point for clang's libFuzzer; scripts/fuzz builds it.
#include "fuzz/wire_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvd::fuzz::ParseEverything(data, size);
  return 0;
}
