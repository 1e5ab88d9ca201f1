// SPDX-License-Identifier: Apache-2.0
// Averages of integers under 64 bits (Reduction::IsWidened): the exact quotient, truncated toward zero. The sum is kept
// in a wider type, so that it cannot overflow. A postscale other than 1 is applied in double to the sum, together with
// the division; the product is truncated toward zero, and clamped to what dtype holds.
#pragma once

#include <cstddef>

#include "collectives/machine.h"

namespace hvd {

// Compute dst[i] = (sources[0][i] + sources[1][i] + ...) / divisor from the sources of all members. dst and dst2 may
// each equal one of the sources exactly; dst2 may be null, otherwise it receives the values of dst.
void AverageIntegers(const Reduction& reduction, void* dst, void* dst2, const void* const* sources,
                     int count_of_sources, size_t count);

// Convert elements to SumDType() for the exchange of partial sums, and convert complete sums to averages. The buffers
// must not overlap.
void WidenIntegers(const Reduction& reduction, void* wide, const void* from, size_t count);
void NarrowAverages(const Reduction& reduction, void* to, const void* wide, size_t count);

}  // namespace hvd
