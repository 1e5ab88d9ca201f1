# SPDX-License-Identifier: Apache-2.0
"""Barrier of the ranks that uses none of the measured libraries: counters in shared memory.

Ranks leave it within about a microsecond of each other, so that an operation's time contains no wait for late ranks.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_LINE_WORDS = 16  # 128 bytes: one counter in each pair of cache lines, because some processors fetch pairs
_TIMEOUT_S = 120.0
_SPINS_BETWEEN_LOOKS = 10_000


class Gate:
    """Barrier of all ranks. `crowded`: there are more ranks than cores, so spinning ranks must yield."""

    def __init__(self, path: Path, rank: int, ranks: int, crowded: bool) -> None:
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), Gate.bytes_for(ranks))).cast("Q")
        self._mine = rank * _LINE_WORDS
        self._others = [other * _LINE_WORDS for other in range(ranks) if other != rank]
        self._turn = 0
        self._crowded = crowded

    @staticmethod
    def bytes_for(ranks: int) -> int:
        return ranks * _LINE_WORDS * 8

    def meet(self) -> None:
        """Return once all ranks have made as many calls. Raise TimeoutError if a rank never does."""
        words, self._turn = self._words, self._turn + 1
        turn = self._turn
        words[self._mine] = turn
        for other in self._others:
            spins = 0
            while words[other] < turn:
                spins += 1
                if self._crowded:
                    os.sched_yield()
                if spins == _SPINS_BETWEEN_LOOKS:
                    self._wait_patiently(other, turn)

    def _wait_patiently(self, other: int, turn: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while self._words[other] < turn:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {other // _LINE_WORDS} did not come to the gate in {_TIMEOUT_S:.0f} s")
