// SPDX-License-Identifier: Apache-2.0
// How often a test repeats itself with other random numbers. The release build does it in full. Under sanitizers, which
// look for faults in every path rather than for rare results, an eighth of it takes the same paths.
#pragma once

namespace hvd {

#ifdef HVD_SANITIZED
constexpr unsigned Repeats(unsigned in_full) { return (in_full + 7) / 8; }
#else
constexpr unsigned Repeats(unsigned in_full) { return in_full; }
#endif

}  // namespace hvd
