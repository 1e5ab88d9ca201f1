# SPDX-License-Identifier: Apache-2.0
"""Difference in time between two things, estimated from pairs that were measured one after the other.

The estimate is that of Hodges and Lehmann: the median of the means of all pairs of differences, with the interval of
Wilcoxon's signed-rank test. It only assumes that noise is symmetric. A few outliers do no harm, as with the median;
without outliers the interval is nearly as narrow as that of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_PAIRS = 6  # fewer pairs cannot give 95 %; then the interval covers all that was measured


@dataclass(frozen=True)
class Cost:
    """Microseconds of a step above the bound; the range from `low` to `high` contains them with 95 % confidence."""

    value: float
    low: float
    high: float


def cost_of(differences: Sequence[float]) -> Cost:
    """Return the estimate from `differences` of independent pairs."""
    values = np.asarray(differences, float)
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    outside = _left_out(len(values))
    return Cost(float(np.median(means)), float(means[outside]), float(means[-1 - outside]))


def _left_out(count: int) -> int:
    """Return how many of the ordered means are outside the interval on each side: the test's critical rank sum."""
    ways = np.ones(1)  # by rank sum: the number of sets of signs that give it
    for rank in range(1, count + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways
        longer[rank:] += ways
        ways = longer
    tail = np.cumsum(ways) / 2.0**count
    return max(0, int(np.searchsorted(tail, (1 - CONFIDENCE) / 2, side="right")) - 1)
