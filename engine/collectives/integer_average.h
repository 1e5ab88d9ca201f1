// SPDX-License-Identifier: Apache-2.0
// Averages of integers under 64 bits (Reduction::IsWidened): the exact quotient, truncated toward zero. The sum is kept
// in a wider type, so that it cannot overflow. A postscale other than 1 is applied in double to the sum, together with
// the division; the product is truncated toward zero, and clamped to what dtype holds.
#pragma once

#include <cstddef>

#include "collectives/machine.h"

namespace hvd {

// Where all sources are at hand: dst[i] = (sources[0][i] + sources[1][i] + ...) / divisor. dst and dst2 may each equal
// one of the sources exactly; dst2 may be null, else it receives the same values as dst.
void AverageIntegers(const Reduction& reduction, void* dst, void* dst2, const void* const* sources,
                     int count_of_sources, size_t count);

// Where partial sums travel: to SumDType() before the first addition, and from the sum of all members to the average.
// Nothing overlaps.
void WidenIntegers(const Reduction& reduction, void* wide, const void* from, size_t count);
void NarrowAverages(const Reduction& reduction, void* to, const void* wide, size_t count);

}  // namespace hvd
