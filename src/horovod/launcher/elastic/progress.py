# SPDX-License-Identifier: Apache-2.0
"""Detection of workers that make no progress, as a pure function of (state, event, now).

Progress is a finished operation or a commit. A worker that waits for others inside an operation is not blamed; one that
is stuck elsewhere, or does not answer, is.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.common.escaping import escaped
from horovod.launcher.elastic.vocabulary import Told

ASKS = 4  # questions to each worker within the timeout
_LONGEST_STACK = 20_000  # characters


def told_by(birth: int, message: dict[str, Any]) -> Told:
    """Return the event for a worker's answer."""
    numbers = tuple(int(message[name]) for name in ("generation", "finished", "commits"))
    return Told(birth, numbers, bool(message["waits"]), escaped(str(message["stack"])[:_LONGEST_STACK]))


@dataclass(frozen=True)
class Seen:
    """Last answer of a member. `since` is when its `mark` last changed."""

    mark: tuple[int, ...]
    since: float
    waits: bool = False
    stack: str = ""
    is_reported: bool = False


@dataclass(frozen=True)
class Ask:
    """Action: ask workers for their progress. `stacks` holds the workers that must send their Python stacks too."""

    births: tuple[int, ...]
    stacks: tuple[int, ...]


@dataclass(frozen=True)
class Stuck:
    """Action: report a stuck worker, and kill it if `kill` is set.

    `stack` is empty if the worker has not answered. `waits` means that it waits for other workers, all of which wait
    too.
    """

    birth: int
    idle_s: float
    stack: str
    waits: bool = False
    kill: bool = False


@dataclass(frozen=True)
class Watch:
    """State of the detection.

    Attributes:
        kills: Kill stuck workers that hold up others.
        members: The workers of the generation, by birth id.
    """

    timeout_s: float = 0.0
    kills: bool = False
    members: dict[int, Seen] = field(default_factory=dict)
    asked_at: float = -math.inf

    def next_time(self) -> float | None:
        return self.asked_at + self.timeout_s / ASKS if self.timeout_s and self.members else None


def look(watch: Watch, members: Collection[int], told: Told | None, now: float) -> tuple[Watch, list[Ask | Stuck]]:
    """Return the new state, and the actions to take.

    Args:
        members: The workers that should be training now.
        told: An answer that has just come, if any.
    """
    if not watch.timeout_s:
        return watch, []
    known = {birth: watch.members.get(birth, Seen((), now)) for birth in members}
    asked_at = watch.asked_at if watch.members else now  # a generation has just begun
    if told is not None and told.birth in known:
        known[told.birth] = _heard(known[told.birth], told, now)
    actions: list[Ask | Stuck] = []
    for birth in _to_blame(known, now - watch.timeout_s):
        seen = known[birth]
        holds_up = not seen.waits and any(other.waits for other in known.values())
        actions.append(Stuck(birth, now - seen.since, seen.stack, seen.waits, kill=watch.kills and holds_up))
        known[birth] = replace(seen, is_reported=True)
    if known and now >= asked_at + watch.timeout_s / ASKS:
        late = tuple(birth for birth, seen in known.items() if now >= seen.since + watch.timeout_s / 2)
        actions.append(Ask(tuple(known), late))
        asked_at = now
    return replace(watch, members=known, asked_at=asked_at), actions


def _heard(seen: Seen, told: Told, now: float) -> Seen:
    if told.mark != seen.mark:
        return Seen(told.mark, now, told.waits, told.stack)
    return replace(seen, waits=told.waits, stack=told.stack or seen.stack)


def _to_blame(known: dict[int, Seen], before: float) -> list[int]:
    idle = {birth: seen for birth, seen in known.items() if seen.since <= before}
    stuck = [birth for birth, seen in idle.items() if not seen.waits]
    if not stuck and len(idle) == len(known):
        stuck = list(idle)  # every worker waits for another one
    return [birth for birth in stuck if not idle[birth].is_reported]
