# SPDX-License-Identifier: Apache-2.0
"""Selection of the part that starts next: pure rules over the list of parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testkit.suite.parts import Part

CORES = 2
MAX_WAITING = 1  # number of parts with `cores=0` that may run at a time


def next_part(waiting: Sequence[Part], running: Collection[Part], succeeded: Collection[str]) -> Part | None:
    """Return the first part that may start beside the running ones, or None.

    If the first part whose predecessors are done needs all cores, no later part that needs a core may start before it,
    because it might otherwise wait very long.
    """
    for part in waiting:
        if not all(name in succeeded for name in part.after):
            continue
        if _fits(part, running):
            return part
        if part.cores >= CORES or part.is_alone:
            return next_waiting_part(waiting, running, succeeded)
    return None


def next_waiting_part(waiting: Sequence[Part], running: Collection[Part], succeeded: Collection[str]) -> Part | None:
    """Return the first part that needs no core, or None. Such a part may start before earlier ones."""
    for part in waiting:
        if part.cores == 0 and all(name in succeeded for name in part.after) and _fits(part, running):
            return part
    return None


def _fits(part: Part, running: Collection[Part]) -> bool:
    if part.is_alone or any(other.is_alone for other in running):
        return not running
    if part.cores == 0:
        return sum(other.cores == 0 for other in running) < MAX_WAITING
    return sum(other.cores for other in running) + part.cores <= CORES


def unreachable(waiting: Sequence[Part], failed: Collection[str]) -> list[Part]:
    """Return the parts that can never start, because a part they come after has failed."""
    lost = set(failed)
    found: list[Part] = []
    while more := [part for part in waiting if part not in found and any(name in lost for name in part.after)]:
        found += more
        lost |= {part.name for part in more}
    return found
