# SPDX-License-Identifier: Apache-2.0
"""Messages about an elastic job for the user: one line for each change of its members. Pure functions only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from horovod.launcher.elastic.progress import Stuck
from horovod.launcher.elastic.vocabulary import Announce, CutOff, Failure, Healed, Slot, Waiting, Worker

_CONSEQUENCE = ", after it had lost another rank"


def announcement(announced: Announce, slots: Mapping[int, Slot]) -> str:
    """Return the message for a new generation. `slots` holds the slot of each past and present worker, by birth id."""
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
    if announced.spares:
        spares = [f"worker {birth} on {slots[birth][0]}" for birth in announced.spares]
        line += f"; spare{'' if len(spares) == 1 else 's'}: " + ", ".join(spares)
    return line


def stuck(found: Stuck, worker: Worker) -> str:
    who = f"rank {worker.rank} (worker {worker.birth} on {worker.slot[0]})"
    line = f"{who} makes no progress: no operation ended and nothing was committed for {found.idle_s:.0f} s"
    line += ", and so do the others, for which it waits" if found.waits else ""
    line += "; it is killed and replaced" if found.kill else ""
    if not found.stack:
        return f"{line}; it does not tell where it is"
    return "\n".join([f"{line}; this is where it is:", *(f"  {one}" for one in found.stack.splitlines())])


def failed(failure: Failure, rests_until: float | None, now: float) -> str:
    """Return the message for a worker that failed before it became a member."""
    then = "another is started there"
    if rests_until is not None:
        rest = f"rests for {rests_until - now:.0f} s" if rests_until < math.inf else "is not used any more"
        then = f"its slot ({failure.slot[1]}) {rest}"
    return f"worker {failure.birth} on {failure.slot[0]} failed before it joined: {failure.why}; {then}"


def end(why: str, failures: Sequence[Failure]) -> str:
    """Return why the job failed, followed by the table of failures if there are any."""
    return "\n".join([why, *([failure_table(failures)] if failures else [])])


def failure_table(failures: Sequence[Failure]) -> str:
    """Return a table of the failed workers. Each cause comes before the failures that followed from it."""
    rows = [("worker", "host", "slot", "why")]
    rows += [
        (str(one.birth), one.slot[0], str(one.slot[1]), one.why + (_CONSEQUENCE if one.blames_peer else ""))
        for one in failures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join(["who failed, and why:", *(f"  {line}" for line in lines)])


def waiting(few: Waiting, timeout_s: float) -> str:
    ready = f"{few.have} of at least {few.need} workers are ready"
    ready += " and reach each other" if few.bad else ""
    return f"{ready}: waiting for more, at most {timeout_s:g} s{few.coming}{f'; {few.bad}' if few.bad else ''}"


def cut_off(cut: CutOff, slots: Mapping[int, Slot]) -> str:
    """Return the message for workers that cannot reach each other. `slots` holds the workers' slots, by birth id."""
    going_on, waiting_ = (_on_hosts(births, slots) for births in (cut.going_on, cut.waiting))
    wait = "waits" if len(cut.waiting) == 1 else "wait"
    go = "goes" if len(cut.going_on) == 1 else "go"
    return f"{cut.bad}: {going_on} {go} on, and {waiting_} {wait} until they do"


def _on_hosts(births: Sequence[int], slots: Mapping[int, Slot]) -> str:
    hosts = list(dict.fromkeys(slots[birth][0] for birth in births))
    count = f"{len(births)} workers" if len(births) > 1 else f"worker {births[0]}"
    return f"{count} on {', '.join(hosts)}"


def healed(found: Healed) -> str:
    lines = [f"hosts {one} and {other} reach each other again" for one, other in sorted(found.pairs.hosts)]
    lines += [f"workers {one} and {other} try to reach each other again" for one, other in sorted(found.pairs.workers)]
    return "; ".join(lines)
