# SPDX-License-Identifier: Apache-2.0
"""What an elastic job is spoken of in: workers, what happens to them (events), what is to be done (actions)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile
from horovod.launcher.elastic.choice import BadPairs, HostPair
from horovod.launcher.elastic.places import Place
from horovod.launcher.start.leave_reports import leave_in

REMOVED, ADDED = 1, 2  # as horovod.common.notifications.HostUpdateResult has them

Slot = tuple[str, int]  # host, number of the slot on it


def rest_after(failures: int, bounds: tuple[float, float]) -> float:
    """Return for how many seconds a slot or a host rests after so many failures: twice as long after each one."""
    low, high = bounds
    return min(high, low * 2.0 ** min(failures - 1, 30))


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"
    FENCED = "fenced"  # nothing more was heard of it: it was killed, and its end is waited for


@dataclass(frozen=True)
class Limits:
    """`fixed_hosts`: no others will ever come, so nobody needs to wait for them.

    `progress_timeout_s`: a worker without progress is reported after this time (0: never), or killed if so wanted.
    `silence_s`: a member for which others wait, and which does not answer, is killed after this time (0: never).
    """

    num_proc: int
    min_num_proc: int
    max_num_proc: int
    timeout_s: float = 600.0
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    fixed_hosts: bool = True
    spares: int = 0  # workers beyond the others that wait for somebody's place
    progress_timeout_s: float = 0.0
    replace_stuck: bool = False
    silence_s: float = 0.0
    probe_every_s: float = 10.0  # hosts that do not reach each other try again after this time, and later less often


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
    fresh: bool = False  # a member that has said that it has no state of the training yet
    started: float = 0.0
    ready_since: float = 0.0  # it waits for its place
    preempted: bool = False  # it got SIGTERM, and leaves at the next commit
    listens: bool = False  # it has a thread that answers
    unanswered: int = 0  # how often it was asked since it has last answered
    why: str = ""  # it is leaving
    fails: str = ""  # the error with which it is about to end, and with which any other in its place would end
    leaves: Leaves | None = None  # the exception with which it is about to end


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
    """A worker asks for its place in the next generation. `lost`: the loss of a rank that has ended its last one.

    `fresh`: it was never handed the state of the training, even if it was a member already. `seen`: the newest
    checkpoints that it knows of.
    """

    birth: int
    lost: Loss | None = None
    fresh: bool = False
    seen: tuple[SeenFile, ...] = ()


@dataclass(frozen=True)
class Saw:
    """A worker sees checkpoints in its folder: without them no worker may begin the training from nothing."""

    birth: int
    seen: tuple[SeenFile, ...]


@dataclass(frozen=True)
class Fails:
    """A worker is about to end with an error that all workers raise, and that a replacement would raise too."""

    birth: int
    why: str


@dataclass(frozen=True)
class Leaves:
    """A worker is about to end because of an exception. Its process may take long for that.

    `what`: for example "raised ValueError: no such file". `code`: the exit code to expect. `blames_peer`: the exception
    followed from the loss of another rank.
    """

    birth: int
    what: str
    code: int = 1
    blames_peer: bool = False

    def end(self, code: int, how: str, *, was_killed: bool) -> tuple[int, str]:
        """Return exit code and reason for a process that ended like this, or that was killed because it did not end."""
        if was_killed:
            return self.code, f"it {self.what}, and its process did not end"
        says_nothing_new = self.blames_peer or self.what.removeprefix("raised ") in how
        return code or self.code, how if says_nothing_new else f"it {self.what} ({how})"


@dataclass(frozen=True)
class Ended:
    """`blames_peer`: its last words say that another rank was lost, so it is not the cause of anything."""

    birth: int
    code: int
    how: str
    blames_peer: bool = False


@dataclass(frozen=True)
class Preempted:
    """A worker got SIGTERM from somebody else, and asks whether it may train until the next commit."""

    birth: int


@dataclass(frozen=True)
class Told:
    """What a worker has answered when it was asked for its progress. `mark` changes whenever it makes some."""

    birth: int
    mark: tuple[int, ...]
    waits: bool  # for others, inside an operation
    stack: str = ""


@dataclass(frozen=True)
class Listens:
    """A worker has begun to listen: from now on it can answer, unless it is frozen."""

    birth: int


@dataclass(frozen=True)
class Probed:
    """The answer to `Probe`: the pairs of which one host does not reach the other, in either direction."""

    number: int
    cut: frozenset[HostPair] = frozenset()


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Discovered | HostGone | Ready | Saw | Fails | Leaves | Ended | Preempted | Told | Listens | Probed | Tick

_MAX_WHY = 4000  # characters


def reported_by(birth: int, message: dict[str, Any]) -> Saw | Fails | Leaves:
    """Return the event that a worker's report is. KeyError or TypeError if it is none."""
    if "seen" in message:
        return Saw(birth, tuple(SeenFile.unpacked(one) for one in message["seen"]))
    if "leaves" in message:
        return Leaves(birth, *leave_in(message), blames_peer=message.get("blames_peer") is True)
    return Fails(birth, str(message["fails"])[:_MAX_WHY])


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
class Excuse:
    """Answer a worker that was preempted: whether it may train until the next commit."""

    birth: int
    may_stay: bool


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
    spares: tuple[int, ...] = ()  # that wait, or are being started


@dataclass(frozen=True)
class Notify:
    """Ask the members of the generation to come together at their next commit."""

    births: tuple[int, ...]
    generation: int
    update: int


@dataclass(frozen=True)
class Call:
    """Ask members for which others wait whether they are still there."""

    births: tuple[int, ...]


@dataclass(frozen=True)
class Waiting:
    """There are too few workers to go on. `coming`: words about those that are being started, if there are any.

    `bad`: hosts and workers that do not reach each other, because of which there are too few.
    """

    have: int
    need: int
    coming: str = ""
    bad: BadPairs = field(default_factory=BadPairs)


@dataclass(frozen=True)
class Probe:
    """Let the two hosts of each pair try to reach each other. The answer is `Probed`."""

    number: int
    pairs: tuple[HostPair, ...]


@dataclass(frozen=True)
class CutOff:
    """Workers do not reach each other: some of them go on, and others wait until they do. Birth ids."""

    bad: BadPairs
    going_on: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class Healed:
    """Hosts reach each other again; workers that did not, although their hosts do, are to try again."""

    pairs: BadPairs


@dataclass(frozen=True)
class Failure:
    """`blames_peer`: it followed from the loss of another member of this generation.

    `reported`: what the worker reported before it ended, for example "raised ValueError: no such file".
    """

    birth: int
    slot: Slot
    why: str
    generation: int = -1
    blames_peer: bool = False
    reported: str | None = None


@dataclass(frozen=True)
class GiveUp:
    """`worker`: the birth id of the one that failed first, if one did. `failures`: the last ones, of any generation."""

    why: str
    code: int = 1
    worker: int | None = None
    failures: tuple[Failure, ...] = ()


Action = (
    Start | Signal | Dismiss | Excuse | Close | Announce | Notify | Call | Waiting | Probe | CutOff | Healed | GiveUp
)
