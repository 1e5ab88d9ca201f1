# SPDX-License-Identifier: Apache-2.0
"""Workers, events and actions of an elastic job."""

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

REMOVED, ADDED = 1, 2  # values of horovod.common.notifications.HostUpdateResult

Slot = tuple[str, int]  # host, and number of the slot on it


def rest_after(failures: int, bounds: tuple[float, float]) -> float:
    """Return the seconds that a slot or a host rests after a number of failures. The time doubles with each failure."""
    low, high = bounds
    return min(high, low * 2.0 ** min(failures - 1, 30))


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"
    FENCED = "fenced"  # killed by the driver, which waits for its end


@dataclass(frozen=True)
class Limits:
    """Limits of an elastic job.

    Attributes:
        fixed_hosts: No other hosts will ever come, so there is no need to wait for them.
        progress_timeout_s: Time after which a worker without progress is reported or killed; 0 means never.
        silence_s: Time after which a member is killed that others wait for and that does not answer; 0 means never.
    """

    num_proc: int
    min_num_proc: int
    max_num_proc: int
    timeout_s: float = 600.0
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    fixed_hosts: bool = True
    spares: int = 0  # workers that wait to replace a lost one
    progress_timeout_s: float = 0.0
    replace_stuck: bool = False
    silence_s: float = 0.0
    # first interval at which hosts that cannot reach each other try again; later intervals are longer
    probe_every_s: float = 10.0


@dataclass(frozen=True)
class Worker:
    """Worker of an elastic job.

    Attributes:
        rank: Its rank in the last generation that it was a member of.
        until: When a leaving worker is killed, when a worker that others have lost is fenced unless it asks for a
            place, and when a fenced worker counts as ended.
    """

    birth: int
    slot: Slot
    phase: Phase = Phase.STARTING
    rank: int | None = None
    member_since: float | None = None
    until: float = math.inf
    fresh: bool = False  # True for a member that reported that it has no training state yet
    started: float = 0.0
    ready_since: float = 0.0  # when it began to wait for its place
    preempted: bool = False  # True once it got SIGTERM; it leaves at its next commit
    listens: bool = False  # True if it has a thread that answers questions
    unanswered: int = 0  # number of questions since its last answer
    why: str = ""  # reason why it is leaving
    fails: str = ""  # error that ends it and that would end any replacement too
    leaves: Leaves | None = None  # exception that is ending it


# Events


@dataclass(frozen=True)
class Discovered:
    """Event: the hosts that exist now, with the number of slots of each.

    `awaited` counts the slots of hosts that cannot be used at present but may become usable.
    """

    hosts: dict[str, int]
    awaited: int = 0


@dataclass(frozen=True)
class HostGone:
    """Event: a host cannot be reached any more.

    Its agent's lease ends its workers, and its slots are not blamed for that.
    """

    host: str
    why: str


@dataclass(frozen=True)
class Ready:
    """Event: a worker asks for its place in the next generation.

    Attributes:
        lost: The loss of a rank that ended the worker's last generation.
        fresh: The worker never received the training state, even if it was a member already.
        seen: The newest checkpoints that the worker knows of.
    """

    birth: int
    lost: Loss | None = None
    fresh: bool = False
    seen: tuple[SeenFile, ...] = ()


@dataclass(frozen=True)
class Saw:
    """Event: a worker sees checkpoints in its folder. Training must not start from nothing without them."""

    birth: int
    seen: tuple[SeenFile, ...]


@dataclass(frozen=True)
class Fails:
    """Event: a worker is about to end with an error that all workers raise, and that a replacement would raise too."""

    birth: int
    why: str


@dataclass(frozen=True)
class Leaves:
    """Event: a worker is about to end because of an exception. Its process may take long to end.

    Attributes:
        what: For example "raised ValueError: no such file".
        code: The expected exit code.
        blames_peer: The exception followed from the loss of another rank.
    """

    birth: int
    what: str
    code: int = 1
    blames_peer: bool = False

    def end(self, code: int, how: str, *, was_killed: bool) -> tuple[int, str]:
        """Return exit code and reason for the end of this worker's process.

        Args:
            was_killed: The launcher killed the process because it did not end.
        """
        if was_killed:
            return self.code, f"it {self.what}, and its process did not end"
        says_nothing_new = self.blames_peer or self.what.removeprefix("raised ") in how
        return code or self.code, how if says_nothing_new else f"it {self.what} ({how})"


@dataclass(frozen=True)
class Ended:
    """Event: a worker's process has ended.

    `blames_peer` means that its last output reports the loss of another rank, so it is not the cause of the failure.
    """

    birth: int
    code: int
    how: str
    blames_peer: bool = False


@dataclass(frozen=True)
class Preempted:
    """Event: a worker got a SIGTERM that the job did not send, and asks whether it may train until the next commit."""

    birth: int


@dataclass(frozen=True)
class Told:
    """Event: a worker's answer to the question about its progress. `mark` changes whenever it makes progress."""

    birth: int
    mark: tuple[int, ...]
    waits: bool  # True if it waits for other ranks inside an operation
    stack: str = ""


@dataclass(frozen=True)
class Listens:
    """Event: a worker has begun to listen. From now on it can answer, unless it is frozen."""

    birth: int


@dataclass(frozen=True)
class Probed:
    """Event: the answer to `Probe`. `cut` holds the pairs of hosts of which one cannot reach the other."""

    number: int
    cut: frozenset[HostPair] = frozenset()


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Discovered | HostGone | Ready | Saw | Fails | Leaves | Ended | Preempted | Told | Listens | Probed | Tick

_MAX_WHY = 4000  # characters


def reported_by(birth: int, message: dict[str, Any]) -> Saw | Fails | Leaves:
    """Return the event for a worker's report. Raise KeyError or TypeError if the message is not a report."""
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
    """Action: refuse a place to a worker that asks for one."""

    birth: int
    why: str


@dataclass(frozen=True)
class Excuse:
    """Action: tell a preempted worker whether it may train until the next commit."""

    birth: int
    may_stay: bool


@dataclass(frozen=True)
class Close:
    """Action: close a generation, because one of its members has ended and the others cannot meet in it."""

    generation: int
    why: str


@dataclass(frozen=True)
class Left:
    rank: int
    birth: int
    why: str


@dataclass(frozen=True)
class Announce:
    """Action: announce a new generation.

    `took_s` is the time since the first sign of the change, or None for the first generation.
    """

    generation: int
    places: dict[int, Place]  # by birth id
    left: tuple[Left, ...] = ()
    came: tuple[int, ...] = ()
    took_s: float | None = None
    spares: tuple[int, ...] = ()  # birth ids of spares that wait or are being started


@dataclass(frozen=True)
class Notify:
    """Action: ask the members of the generation to come together at their next commit."""

    births: tuple[int, ...]
    generation: int
    update: int


@dataclass(frozen=True)
class Call:
    """Action: ask members that others wait for whether they are still alive."""

    births: tuple[int, ...]


@dataclass(frozen=True)
class Waiting:
    """Action: tell the user that there are too few workers to go on.

    Attributes:
        coming: Text about workers that are being started, or an empty string.
        bad: Pairs of hosts and workers that cannot reach each other, which is why there are too few.
    """

    have: int
    need: int
    coming: str = ""
    bad: BadPairs = field(default_factory=BadPairs)


@dataclass(frozen=True)
class Probe:
    """Action: let the two hosts of each pair try to reach each other. `Probed` is the answer."""

    number: int
    pairs: tuple[HostPair, ...]


@dataclass(frozen=True)
class CutOff:
    """Action: tell the user that workers cannot reach each other, and which of them go on or wait (birth ids)."""

    bad: BadPairs
    going_on: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class Healed:
    """Action: tell the user that pairs of hosts reach each other again, and that pairs of workers try again."""

    pairs: BadPairs


@dataclass(frozen=True)
class Failure:
    """Failure of a worker.

    Attributes:
        blames_peer: The failure followed from the loss of another member of this generation.
        reported: What the worker reported before it ended, for example "raised ValueError: no such file".
    """

    birth: int
    slot: Slot
    why: str
    generation: int = -1
    blames_peer: bool = False
    reported: str | None = None


@dataclass(frozen=True)
class GiveUp:
    """Action: end the job.

    Attributes:
        worker: The birth id of the worker that failed first, if any.
        failures: The most recent failures, of any generation.
    """

    why: str
    code: int = 1
    worker: int | None = None
    failures: tuple[Failure, ...] = ()


Action = (
    Start | Signal | Dismiss | Excuse | Close | Announce | Notify | Call | Waiting | Probe | CutOff | Healed | GiveUp
)
