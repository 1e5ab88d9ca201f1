# SPDX-License-Identifier: Apache-2.0
"""What users read of an elastic job: one line for each change of its membership. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.runner.elastic.vocabulary import Announce, Slot, Waiting


def announcement(announced: Announce, slots: Mapping[int, Slot]) -> str:
    """`slots`: where workers live or lived, by birth id."""
    count = len(announced.places)
    line = f"generation {announced.generation}: {count} worker{'' if count == 1 else 's'}"
    if announced.took_s is not None:
        line += f" after {announced.took_s:.2f} s"
    left = [f"rank {one.rank} (worker {one.birth} on {slots[one.birth][0]}): {one.why}" for one in announced.left]
    came = [f"worker {birth} on {slots[birth][0]} as rank {announced.places[birth].rank}" for birth in announced.came]
    if left:
        line += "; left: " + ", ".join(left)
    if came:
        line += "; came: " + ", ".join(came)
    return line


def waiting(few: Waiting, timeout_s: float) -> str:
    return f"{few.have} of at least {few.need} workers are ready: waiting for more, at most {timeout_s:g} s"
