// SPDX-License-Identifier: Apache-2.0
// How often a test repeats itself with other random numbers. The release build does it in full. Under sanitizers, which
// look for faults in every path rather than for rare results, an eighth of it takes the same paths.
#pragma once

namespace hvd {

extern const bool kSanitized;  // main.cc: builds with and without a sanitizer may share the other objects

inline unsigned Repeats(unsigned in_full) { return kSanitized ? (in_full + 7) / 8 : in_full; }

}  // namespace hvd
