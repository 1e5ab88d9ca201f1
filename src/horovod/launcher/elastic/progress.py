# SPDX-License-Identifier: Apache-2.0
"""Which workers of an elastic job make no progress: decisions only, pure functions of (state, what happened, now).

Progress is an operation that is over, or a commit. A worker that waits for others inside an operation is not to blame;
one that is stuck elsewhere, or does not even answer, is.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.common.escaping import escaped
from horovod.launcher.elastic.vocabulary import Told

ASKS = 4  # times that workers are asked before the time is over
_LONGEST_STACK = 20_000  # characters


def told_by(birth: int, message: dict[str, Any]) -> Told:
    """The answer of a worker, as it came."""
    numbers = tuple(int(message[name]) for name in ("generation", "finished", "commits"))
    return Told(birth, numbers, bool(message["waits"]), escaped(str(message["stack"])[:_LONGEST_STACK]))


@dataclass(frozen=True)
class Seen:
    """Of one member: what it told last, and since when that is so."""

    mark: tuple[int, ...]
    since: float
    waits: bool = False
    stack: str = ""
    is_reported: bool = False


@dataclass(frozen=True)
class Ask:
    """`stacks`: those who are to send their Python stacks too."""

    births: tuple[int, ...]
    stacks: tuple[int, ...]


@dataclass(frozen=True)
class Stuck:
    """`stack` is empty if the worker has not answered. `waits`: for others, all of which wait too."""

    birth: int
    idle_s: float
    stack: str
    waits: bool = False
    kill: bool = False


@dataclass(frozen=True)
class Watch:
    """`members`: workers in a generation, by birth id. `kills`: whether to kill those that hold up others."""

    timeout_s: float = 0.0
    kills: bool = False
    members: dict[int, Seen] = field(default_factory=dict)
    asked_at: float = -math.inf

    def next_time(self) -> float | None:
        return self.asked_at + self.timeout_s / ASKS if self.timeout_s and self.members else None


def look(watch: Watch, members: Collection[int], told: Told | None, now: float) -> tuple[Watch, list[Ask | Stuck]]:
    """`members` are those that should be training now; `told` is an answer that has just come."""
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
        stuck = list(idle)  # each waits for another
    return [birth for birth in stuck if not idle[birth].is_reported]
