# SPDX-License-Identifier: Apache-2.0
"""Current slowness of this machine, by which limits that only guard against hangs are scaled.

Limits that the product promises (a lost rank is reported within 2 s) are never scaled: tests assert those directly.
"""

from __future__ import annotations

import os
import time

MAX_FACTOR = 4.0
_LOOPS = 400_000
_NOMINAL_S = 0.020  # for these loops on the slowest machine that needs no scaling
_KEPT_S = 5.0

_base: float | None = None
_kept_until = 0.0
_kept = 1.0


def patience(limit_s: float) -> float:
    """Return the limit in seconds, scaled by the current slowness."""
    return limit_s * factor()


def factor() -> float:
    """Return the factor, from 1 to 4, by which operations may now take longer; measured every five seconds."""
    global _base, _kept, _kept_until
    if _base is None:
        _base = _measure()
    if time.monotonic() >= _kept_until:
        _kept = scaled(_base, os.getloadavg()[0], len(os.sched_getaffinity(0)))
        _kept_until = time.monotonic() + _KEPT_S
    return _kept


def scaled(base: float, load: float, cores: int) -> float:
    """Return the factor for a processor that is `base` times slower than usual while `load` threads share its cores."""
    return min(MAX_FACTOR, max(1.0, base) * max(1.0, load / cores))


def _measure() -> float:
    """Return the processor's slowness, measured in processor time so that other processes do not affect it."""
    fastest_s = min(_time_loops() for _ in range(3))
    return fastest_s / _NOMINAL_S


def _time_loops() -> float:
    before = time.thread_time()
    total = 0
    for number in range(_LOOPS):
        total += number
    return time.thread_time() - before
