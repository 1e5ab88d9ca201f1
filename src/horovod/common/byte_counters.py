# SPDX-License-Identifier: Apache-2.0
"""Byte counters of a process: each world counts its own bytes, and this module adds up all worlds of the process."""

from __future__ import annotations

import json
from collections.abc import Callable

from horovod._engine import World

# A counter is None if MPI or NCCL moved tensors, because the engine cannot know how many bytes that took.
Counters = dict[str, int | None]


class MovedBytes:
    """Counter of the bytes that all worlds of a context have moved."""

    def __init__(self) -> None:
        self._ended: Counters = {}  # bytes of worlds that have ended; the dict is replaced, never changed

    def world_ends(self, world: World) -> None:
        self._ended = total(self._ended, counted_by(world.describe()))

    def forget(self) -> None:
        """Start from zero, in a forked child."""
        self._ended = {}

    def counted(self, world: Callable[[], World]) -> Counters:
        """Return the bytes moved so far. Thread-safe.

        Args:
            world: Returns the present world; raises an error if there is none.
        """
        while True:  # Do not take a lock: a thread that opens or closes a world holds it for long.
            ended = self._ended
            counted = counted_by(world().describe())
            if self._ended is ended:
                return total(ended, counted)


def counted_by(description: str) -> Counters:
    """Return the byte counters of one world from the text of World.describe()."""
    counters: Counters = json.loads(description)["counters"]
    return counters


def total(earlier: Counters, latest: Counters) -> Counters:
    """Return the sums of two worlds' counters. A sum is None if one of its summands is None."""
    return {name: _sum(earlier.get(name, 0), latest[name]) for name in latest}


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
