# SPDX-License-Identifier: Apache-2.0
"""What an elastic job is spoken of in: workers, what happens to them (events), what is to be done (actions)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from horovod.runner.elastic.places import Place

REMOVED, ADDED = 1, 2  # as horovod.common.notifications.HostUpdateResult has them

Slot = tuple[str, int]  # host, number of the slot on it


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"
    FENCED = "fenced"  # others heard nothing more of it: it was killed, and its end is waited for


@dataclass(frozen=True)
class Limits:
    """`fixed_hosts`: no others will ever come, so nobody needs to wait for them."""

    num_proc: int
    min_num_proc: int
    max_num_proc: int
    timeout_s: float = 600.0
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    fixed_hosts: bool = True


@dataclass(frozen=True)
class Worker:
    """`rank`: in the last generation that it was a member of.

    `until`: when one that is leaving is killed, when one that others have lost is fenced unless it asks for a place
    itself, and when one that is fenced is taken to have ended.
    """

    birth: int
    slot: Slot
    phase: Phase = Phase.STARTING
    rank: int | None = None
    member_since: float | None = None
    until: float = math.inf


# Events


@dataclass(frozen=True)
class Discovered:
    """The hosts that there are now, and how many slots each has.

    `awaited`: slots of hosts that cannot be used at present, but may be later.
    """

    hosts: dict[str, int]
    awaited: int = 0


@dataclass(frozen=True)
class HostGone:
    """A host that nobody reaches any more; its workers end by their agent's lease. Its slots are not to blame."""

    host: str
    why: str


@dataclass(frozen=True)
class Ready:
    """A worker asks for its place in the next generation. `lost`: the rank whose loss has ended its last one."""

    birth: int
    lost: int | None = None


@dataclass(frozen=True)
class Ended:
    birth: int
    code: int
    how: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Discovered | HostGone | Ready | Ended | Tick


# Actions


@dataclass(frozen=True)
class Start:
    birth: int
    slot: Slot


@dataclass(frozen=True)
class Signal:
    birth: int
    number: int


@dataclass(frozen=True)
class Dismiss:
    """Tell a worker that asks for a place that it has none."""

    birth: int
    why: str


@dataclass(frozen=True)
class Close:
    """Nobody may meet in this generation any more: one of its members is gone."""

    generation: int
    why: str


@dataclass(frozen=True)
class Left:
    rank: int
    birth: int
    why: str


@dataclass(frozen=True)
class Announce:
    """A new generation. `took_s`: since the first sign of the change; None for the first generation."""

    generation: int
    places: dict[int, Place]  # by birth id
    left: tuple[Left, ...] = ()
    came: tuple[int, ...] = ()
    took_s: float | None = None


@dataclass(frozen=True)
class Notify:
    """Ask the members of the generation to come together at their next commit."""

    births: tuple[int, ...]
    generation: int
    update: int


@dataclass(frozen=True)
class Waiting:
    """There are too few workers to go on."""

    have: int
    need: int


@dataclass(frozen=True)
class GiveUp:
    """`worker`: the birth id of the one that failed first, if one did."""

    why: str
    code: int = 1
    worker: int | None = None


Action = Start | Signal | Dismiss | Close | Announce | Notify | Waiting | GiveUp
