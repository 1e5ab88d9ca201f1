# SPDX-License-Identifier: Apache-2.0
"""Statistics of times: percentiles, bandwidth, and the ratio of two series with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchkit.problem import Problem

_RESAMPLES = 1000
_EDGES = (0.025, 0.975)
_KEPT_PER_ROUND = 64  # times of a round for the bootstrap; more would not narrow the interval, but take longer


@dataclass(frozen=True)
class Ratio:
    """Ratio of the peer's time to Khorovod's; `low` and `high` bound it with 95 % confidence."""

    value: float
    low: float
    high: float


def figures(problem: Problem, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the statistics of one series of times in seconds, given by round."""
    times = np.concatenate([np.asarray(times) for times in rounds])
    p10, median, p90, p99 = np.percentile(times, [10, 50, 90, 99])
    return {
        "median_us": round(median * 1e6, 3),
        "p10_us": round(p10 * 1e6, 3),
        "p90_us": round(p90 * 1e6, 3),
        "p99_us": round(p99 * 1e6, 3),
        "min_us": round(times.min() * 1e6, 3),
        "iterations": len(times),
        "rounds": len(rounds),
        "algbw_gbps": round(problem.actual_bytes * problem.tensors / median / 1e9, 6),
        "busbw_gbps": round(problem.actual_bytes * problem.tensors * problem.bus_factor / median / 1e9, 6),
    }


def median_interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the bounds of the median with 95 % confidence, by resampling whole rounds."""
    low, high = np.quantile(_medians(rounds, _draws(len(rounds))), _EDGES)
    return float(low), float(high)


def ratio(ours: Sequence[Sequence[float]], peer: Sequence[Sequence[float]]) -> Ratio:
    """Return the peer's median time relative to Khorovod's, by resampling whole rounds of both series together.

    Runs of one round are not independent, because the machine's state affects all of them; rounds nearly are.
    """
    draws = _draws(len(ours))
    low, high = np.quantile(_medians(peer, draws) / _medians(ours, draws), _EDGES)
    value = np.median(np.concatenate(peer)) / np.median(np.concatenate(ours))
    return Ratio(*(float(f"{one:.4g}") for one in (value, low, high)))


def _draws(rounds: int) -> Any:
    return np.random.default_rng(0).integers(0, rounds, (_RESAMPLES, rounds))


def _medians(rounds: Sequence[Sequence[float]], draws: Any) -> Any:
    kept = min([_KEPT_PER_ROUND, *(len(times) for times in rounds)])
    picks = [np.linspace(0, len(times) - 1, kept).astype(int) for times in rounds]
    samples = np.stack([np.sort(times)[pick] for times, pick in zip(rounds, picks, strict=True)])
    return np.median(samples[draws].reshape(len(draws), -1), axis=1)
