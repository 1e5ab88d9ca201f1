# SPDX-License-Identifier: Apache-2.0
"""State of an elastic job's driver, and values derived from it by pure functions. membership.py makes the decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from horovod.common.lineage import SeenFile
from horovod.launcher.elastic.choice import Candidate, choose
from horovod.launcher.elastic.cuts import Cuts
from horovod.launcher.elastic.places import Place, places_of, planned_in_slot
from horovod.launcher.elastic.vocabulary import ADDED, REMOVED, Failure, Left, Limits, Phase, Slot, Worker

REMINDER_S = 1.0
SPARE_S = 1.0  # how long survivors wait for a spare that is still starting
GATHER_S = 3.0  # how long a ready newcomer waits for others that are still starting, so that the members stop only once
LEAST_START_S = 60.0  # start time that a newcomer gets at least, however fast earlier workers started
SLOWER_START = 10  # factor on the slowest start so far, because a newcomer shares the cores with workers that train
LOSS_S = 3.0  # time in which members notice that one of them has ended
PREEMPTED_WHY = "SIGTERM: preempted"


@dataclass(frozen=True)
class State:
    limits: Limits
    hosts: dict[str, int] = field(default_factory=dict)
    awaited: int = 0  # slots of hosts that may appear or come back
    workers: dict[int, Worker] = field(default_factory=dict)  # living workers by birth id
    members: tuple[int, ...] = ()  # birth ids of the generation's members by rank, including members that have ended
    generation: int = -1
    next_birth: int = 0
    failures: dict[Slot, int] = field(default_factory=dict)
    rests_until: dict[Slot, float] = field(default_factory=dict)
    history: tuple[Failure, ...] = ()  # the most recent failures
    awaits_spare: bool = False
    left: tuple[Left, ...] = ()  # members that left since the last announcement
    changing_since: float | None = None
    waiting_since: float | None = None
    said_waiting: bool = False
    notified_at: float = -math.inf
    called_at: float = -math.inf
    finished: bool = False  # True once a worker has finished its work; no new workers are started then
    first_failure: tuple[int, str, int | None] | None = None  # in this generation: exit code, reason, and birth id
    slowest_start_s: float = 0.0  # longest time from a worker's start until its first request for a place
    has_trained: bool = False  # True once a worker has held training state that must not be lost
    # newest checkpoints that any worker has seen, for each checkpoint() call
    seen: dict[int, SeenFile] = field(default_factory=dict)
    cuts: Cuts = field(default_factory=Cuts)
    over: bool = False

    def is_offered(self, slot: Slot) -> bool:
        return slot[1] < self.hosts.get(slot[0], 0)

    def survivors(self) -> list[Worker]:
        """Return the living members of the last generation, except those that are leaving."""
        found = [self.workers[birth] for birth in self.members if birth in self.workers]
        return [worker for worker in found if worker.phase is not Phase.LEAVING]

    def by_seniority(self) -> list[tuple[int, Slot]]:
        """Return birth ids and slots of all workers, the workers that the job needs most first."""

        def key(worker: Worker) -> tuple[bool, bool, bool, bool, float, int]:
            goes = worker.preempted or worker.phase in (Phase.LEAVING, Phase.FENCED)
            starts, waits = worker.phase is Phase.STARTING, worker.birth not in self.members
            return goes, starts, waits, worker.fresh, math.inf if worker.rank is None else worker.rank, worker.birth

        return [(worker.birth, worker.slot) for worker in sorted(self.workers.values(), key=key)]

    def must_leave(self, worker: Worker) -> str:
        """Return why a worker may not be in the next generation, or an empty string if it may."""
        if worker.preempted:
            return PREEMPTED_WHY
        return "" if self.is_offered(worker.slot) else f"its slot on {worker.slot[0]} is gone"

    def usable_slots(self) -> list[Slot]:
        """Return the slots that have no worker and are not resting."""
        taken = {worker.slot for worker in self.workers.values()}
        every = [(host, number) for host, slots in self.hosts.items() for number in range(slots)]
        return [slot for slot in every if slot not in taken and slot not in self.rests_until]

    def staying(self) -> list[Worker]:
        return [worker for worker in (*self.survivors(), *self.newcomers()) if not self.must_leave(worker)]

    def room(self) -> int:
        """Return how many members there may be. Slots are kept free for spares unless that leaves too few members.

        The number of members never falls below the current one or num_proc because of spares.
        """
        slots = len(self.staying()) + len(self.usable_slots())
        least = max(self.limits.num_proc, len(self.members))
        return min(self.limits.max_num_proc, max(least, slots - self.limits.spares))

    def newcomers(self) -> list[Worker]:
        return [
            worker
            for worker in self.workers.values()
            if worker.birth not in self.members and worker.phase is not Phase.LEAVING
        ]

    def has_current_state(self, worker: Worker) -> bool:
        """Return True if a worker has the newest training state.

        A worker that was left out of the last generation has the state of an earlier one.
        """
        return worker.birth in self.members and not worker.fresh

    def places(self, workers: Iterable[Worker]) -> dict[int, Place]:
        """Return the ranks and sizes that a generation of these workers would have, by birth id."""
        return places_of([(one.birth, one.slot, one.rank if self.has_current_state(one) else None) for one in workers])

    def who_waits_with_an_old_state(self) -> str:
        """Return a text that names the workers that were left out of the last generation, or an empty string."""
        waiting = [one for one in self.newcomers() if one.rank is not None and not one.fresh]
        names = ", ".join(f"worker {one.birth} on {one.slot[0]}" for one in waiting)
        return f"; {names} did not reach all others, waited, and lacks what was trained since" if waiting else ""

    def mutually_reachable(self, workers: list[Worker]) -> list[Worker]:
        """Return the workers that go on together, which are all of them unless some cannot reach each other."""
        bad = self.cuts.bad
        if not bad:
            return workers
        candidates = [Candidate(one.birth, one.slot[0], self.has_current_state(one)) for one in workers]
        chosen = choose(candidates, bad)
        return [one for one in workers if one.birth in chosen]

    def joiners(self) -> list[Worker]:
        """Return the newcomers that are ready to join the members and that can reach them."""
        ready = [one for one in self.newcomers() if one.phase is Phase.READY]
        if not ready or not self.cuts.bad:
            return ready
        members = [one for one in self.survivors() if not self.must_leave(one)]
        chosen = self.mutually_reachable([*members, *ready])
        return [one for one in ready if one in chosen] if len(chosen) > len(members) else []

    def start_deadline(self, worker: Worker) -> float:
        """Return when a worker that has not asked for a place yet is killed.

        The limit is infinite while no worker has asked, because some programs never call hvd.init().
        """
        timeout_s = self.limits.timeout_s or math.inf
        if self.generation >= 0:
            return worker.started + min(timeout_s, max(LEAST_START_S, SLOWER_START * self.slowest_start_s))
        others = [one.ready_since for one in self.workers.values() if one.phase is Phase.READY]
        return min(others) + timeout_s if others else math.inf

    def awaited_members(self) -> list[Worker]:
        """Return the members that others wait for and that no member reported lost.

        They may be busy and not know of the change yet, or be frozen. The other members cannot notice a frozen one any
        more, because they have left the world that watched for it.
        """
        members = self.survivors()
        if not self.limits.silence_s or not any(worker.phase is Phase.READY for worker in members):
            return []
        return [one for one in members if one.phase is Phase.MEMBER and one.listens and one.until == math.inf]

    def next_call(self) -> float:
        """Return when to ask the awaited members for a sign of life.

        The delay gives most of them time to arrive first.
        """
        return max(self.called_at, math.inf if self.waiting_since is None else self.waiting_since) + REMINDER_S

    def has_unnoticed_loss(self) -> bool:
        """Return True if the driver has lost a member, and another member has not asked for a new place since.

        Usually the loss breaks the members' world, so that all of them ask. If only a host's agent is frozen, its
        workers still live, and the other members go on training with them.
        """
        members = self.survivors()
        return len(members) < len(self.members) and any(worker.phase is Phase.MEMBER for worker in members)

    def loss_is_overdue_at(self) -> float:
        return math.inf if self.changing_since is None else self.changing_since + LOSS_S

    def gathers_until(self) -> float:
        """Return until when ready newcomers wait for others that are still starting and for which there is room."""
        waiting = [one.ready_since for one in self.joiners()]
        others_come = any(one.phase is Phase.STARTING for one in self.newcomers())
        free = self.room() - sum(not self.must_leave(worker) for worker in self.survivors())
        return min(waiting) + GATHER_S if others_come and 0 < len(waiting) < free else -math.inf

    def next_time(self) -> float | None:
        """Return when the driver must look again if no event comes before, or None."""
        times = [self.cuts.next_time(), *(worker.until for worker in self.workers.values())]
        times += [self.start_deadline(one) for one in self.workers.values() if one.phase is Phase.STARTING]
        if self.waiting_since is not None:
            times.append(self.waiting_since + self.limits.timeout_s)
            if self.awaits_spare:
                times.append(self.waiting_since + SPARE_S)
        if pending_update(self, self.gathers_until()):
            begin = -math.inf if pending_update(self, -math.inf) else self.gathers_until()
            times.append(max(begin, self.notified_at + REMINDER_S))
        if self.awaited_members():
            times.append(self.next_call())
        if self.has_unnoticed_loss():
            times.append(max(self.loss_is_overdue_at(), self.notified_at + REMINDER_S))
        taken = {worker.slot for worker in self.workers.values()}
        times += [until for slot, until in self.rests_until.items() if slot not in taken and self.is_offered(slot)]
        finite = [moment for moment in times if moment < math.inf]
        return min(finite) if finite and not self.over else None


def planned_places(births: Iterable[int], state: State) -> dict[int, Place]:
    """Return the places that workers starting now will probably have, counting spares as members."""
    workers = {one.birth: one for one in state.staying()}
    places = state.places(workers.values())
    taken = [workers[other].slot for other in sorted(places, key=lambda other: places[other].rank)]
    return {birth: planned_in_slot(workers[birth].slot, places[birth], taken) for birth in births}


def pending_update(state: State, now: float) -> int:
    """Return what the members must be notified of (ADDED, REMOVED or both), or 0.

    The result is 0 if a member was lost or already waits for the next generation, because then all of them come
    together anyway.
    """
    members = state.survivors()
    if not members or state.finished:
        return 0
    if state.has_unnoticed_loss() and now >= state.loss_is_overdue_at():
        return REMOVED
    if len(members) < len(state.members) or any(worker.phase is not Phase.MEMBER for worker in members):
        return 0
    removed = [worker for worker in members if state.must_leave(worker)]
    has_room = len(members) - len(removed) < state.room() and now >= state.gathers_until()
    return (ADDED if has_room and state.joiners() else 0) | (REMOVED if removed else 0)
