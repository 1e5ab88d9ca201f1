# SPDX-License-Identifier: Apache-2.0
"""How much more one thing takes than another, from pairs that were measured next to each other.

The Hodges-Lehmann estimate, the median of the means of all two differences, with the interval that belongs to it: that
of Wilcoxon's signed-rank test. Nothing is assumed of the noise but that it is as likely above as below. A few wild
pairs do no harm, as with the median; with well-behaved ones the interval is nearly as narrow as that of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_PAIRS = 6  # fewer cannot give 95 %: the interval is then all that was seen


@dataclass(frozen=True)
class Cost:
    """Microseconds of a step above the bound; `low` and `high` hold it with 95 % confidence."""

    value: float
    low: float
    high: float


def cost_of(differences: Sequence[float]) -> Cost:
    """`differences` of independent pairs."""
    values = np.asarray(differences, float)
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    outside = _left_out(len(values))
    return Cost(float(np.median(means)), float(means[outside]), float(means[-1 - outside]))


def _left_out(count: int) -> int:
    """How many of the ordered means lie outside of the interval on either side: the test's critical rank sum."""
    ways = np.ones(1)  # by rank sum: the number of sets of signs that lead to it
    for rank in range(1, count + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways
        longer[rank:] += ways
        ways = longer
    tail = np.cumsum(ways) / 2.0**count
    return max(0, int(np.searchsorted(tail, (1 - CONFIDENCE) / 2, side="right")) - 1)
