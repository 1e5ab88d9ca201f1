# SPDX-License-Identifier: Apache-2.0
"""Processor time that other programs of this machine have used, besides this process and its descendants."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil


class ForeignLoad:
    """Measurement of other programs' load, from the construction on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._all_s = _busy_s()
        self._ours_s = _our_s()

    def cores(self) -> float:
        """Return how many cores other programs have kept busy on average since the construction."""
        elapsed_s = max(time.monotonic() - self._began, 1e-3)
        return max(0.0, (_busy_s() - self._all_s) - (_our_s() - self._ours_s)) / elapsed_s


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _our_s() -> float:
    """Return the time of this process, of descendants that were waited for, and of live ones."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:4])
    return total
