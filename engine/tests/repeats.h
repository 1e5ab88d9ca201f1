// SPDX-License-Identifier: Apache-2.0
// How often a test repeats with other random numbers. The release build runs all repetitions. Builds with sanitizers
// run an eighth, because sanitizers look for faults on every path rather than for rare results.
#pragma once

namespace hvd {

// Defined in main.cc, so that builds with and without a sanitizer can share the other objects.
extern const bool kSanitized;

inline unsigned Repeats(unsigned in_full) { return kSanitized ? (in_full + 7) / 8 : in_full; }

}  // namespace hvd
