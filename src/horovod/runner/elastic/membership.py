# SPDX-License-Identifier: Apache-2.0
"""Who belongs to an elastic job: every decision, as a pure function of (state, event, now). driving.py acts.

    starting --asks for a place--> ready --announced--> member --a peer was lost, or a commit--> ready --> member ...
    any of them --its slot was taken away--> leaving --> ended
    member --a peer has lost it, and it does not ask for a place itself--> fenced (killed) --> ended

Workers are known by their birth ids, never by a rank: a rank is a place in one generation. A generation is announced
once every living member of the last one waits for it, so there are never two groups that train.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from horovod.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from horovod.runner.elastic.places import places_of
from horovod.runner.elastic.vocabulary import (
    ADDED,
    REMOVED,
    Action,
    Announce,
    Close,
    Discovered,
    Dismiss,
    Ended,
    Event,
    GiveUp,
    HostGone,
    Left,
    Limits,
    Notify,
    Phase,
    Ready,
    Signal,
    Slot,
    Start,
    Tick,
    Waiting,
    Worker,
)

MOST_FAILURES = 3  # of workers in one slot, without a cooldown range: then it is not used any more
LASTING_S = 2.0  # a worker that was a member for so long has shown that its slot is good
REMINDER_S = 1.0
LEAVING_S = 10.0
FENCE_S = 1.0  # after a peer has lost it: time for its end to be heard of, or for it to ask for a place
FENCED_WHY = "the others heard nothing more of it (was it frozen, or cut off?), so it was killed"
UNKILLABLE_S = 3.0  # on a host that does not answer any more, or in the kernel: the others go on without its end


@dataclass(frozen=True)
class State:
    limits: Limits
    hosts: dict[str, int] = field(default_factory=dict)
    awaited: int = 0  # slots of hosts that may come, or come back
    workers: dict[int, Worker] = field(default_factory=dict)  # by birth id, those that have not ended
    members: tuple[int, ...] = ()  # birth ids of the generation, by rank, whether they live or not
    generation: int = -1
    next_birth: int = 0
    failures: dict[Slot, int] = field(default_factory=dict)
    rests_until: dict[Slot, float] = field(default_factory=dict)
    left: tuple[Left, ...] = ()  # since the last announcement
    changing_since: float | None = None
    waiting_since: float | None = None
    said_waiting: bool = False
    notified_at: float = -math.inf
    finished: bool = False  # some worker has done all its work: nobody new is started
    first_failure: tuple[int, str, int] | None = None  # of this generation: exit code, words, and whose
    over: bool = False

    def is_offered(self, slot: Slot) -> bool:
        return slot[1] < self.hosts.get(slot[0], 0)

    def survivors(self) -> list[Worker]:
        """Members of the last generation that live and may stay."""
        found = [self.workers[birth] for birth in self.members if birth in self.workers]
        return [worker for worker in found if worker.phase is not Phase.LEAVING]

    def newcomers(self) -> list[Worker]:
        return [
            worker
            for worker in self.workers.values()
            if worker.birth not in self.members and worker.phase is not Phase.LEAVING
        ]

    def next_time(self) -> float | None:
        """When to call again if nothing happens before."""
        times = [worker.until for worker in self.workers.values()]
        if self.waiting_since is not None:
            times.append(self.waiting_since + self.limits.timeout_s)
        if _pending_update(self):
            times.append(self.notified_at + REMINDER_S)
        taken = {worker.slot for worker in self.workers.values()}
        times += [until for slot, until in self.rests_until.items() if slot not in taken and self.is_offered(slot)]
        finite = [moment for moment in times if moment < math.inf]
        return min(finite) if finite and not self.over else None


def decide(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
    """The state after an event, and what is to be done about it."""
    if state.over:
        return state, []
    turn = _Turn(state, now)
    turn.take(event)
    turn.settle()
    return turn.state, turn.actions


def _pending_update(state: State) -> int:
    """What members do not know yet; 0 while they come together anyway."""
    members = state.survivors()
    if not members or state.finished or any(worker.phase is not Phase.MEMBER for worker in members):
        return 0
    if len(members) < len(state.members):
        return 0  # the loss itself brings them together
    ready = any(worker.phase is Phase.READY for worker in state.newcomers())
    removed = any(not state.is_offered(worker.slot) for worker in members)
    return (ADDED if ready else 0) | (REMOVED if removed else 0)


class _Turn:
    """One call of `decide`: works on a copy."""

    def __init__(self, state: State, now: float) -> None:
        self.state = replace(
            state,
            workers=dict(state.workers),
            failures=dict(state.failures),
            rests_until={slot: until for slot, until in state.rests_until.items() if until > now},
        )
        self.now = now
        self.actions: list[Action] = []

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def _put(self, worker: Worker) -> None:
        self.state.workers[worker.birth] = worker

    # What happened

    def take(self, event: Event) -> None:
        match event:
            case Discovered(hosts, awaited):
                # The oldest hosts first: rank 0 stays where it is.
                kept = {host: hosts[host] for host in self.state.hosts if host in hosts}
                self._set(hosts=kept | hosts, awaited=awaited)
            case HostGone(host, why):
                for worker in [worker for worker in self.state.workers.values() if worker.slot[0] == host]:
                    self._lose(worker, 1, why, slot_is_to_blame=False)
                self._set(hosts={name: slots for name, slots in self.state.hosts.items() if name != host})
            case Ready(birth, lost):
                self._welcome(birth)
                if lost is not None and birth in self.state.members:
                    self._suspect(lost)
            case Ended(birth, code, how):
                if birth in self.state.workers:
                    self._lose(self.state.workers[birth], code, how)
            case Tick():
                pass

    def _welcome(self, birth: int) -> None:
        known = self.state.workers.get(birth)
        if known is None or known.phase in (Phase.LEAVING, Phase.FENCED):
            self.actions.append(Dismiss(birth, "this worker does not belong to the job any more"))
            return
        if birth in self.state.members:
            self._begin_change()
        self._put(replace(known, phase=Phase.READY, until=math.inf))

    def _suspect(self, rank: int) -> None:
        """Somebody has lost a member. It may have ended, or be on its way to ask for a place, or be frozen."""
        known = self.state.workers.get(self.state.members[rank]) if rank < len(self.state.members) else None
        if known is not None and known.phase is Phase.MEMBER and known.until == math.inf:
            self._put(replace(known, until=self.now + FENCE_S))

    def _begin_change(self) -> None:
        if self.state.changing_since is None:
            self._set(changing_since=self.now)

    def _lose(self, worker: Worker, code: int, why: str, *, slot_is_to_blame: bool = True) -> None:
        del self.state.workers[worker.birth]
        if worker.phase is Phase.FENCED and slot_is_to_blame:
            why = FENCED_WHY
        was_member = worker.birth in self.state.members
        if was_member and worker.rank is not None:
            self._set(left=(*self.state.left, Left(worker.rank, worker.birth, why)))
        if worker.phase is Phase.LEAVING:
            return
        if code == 0 and (was_member or self.state.generation < 0):  # or a program that needs nobody else
            self._set(finished=True)
            return
        if was_member:
            self._begin_change()
            self.actions.append(Close(self.state.generation, f"rank {worker.rank} has ended: {why}"))
        if self.state.first_failure is None:
            words = f"worker {worker.birth} on {worker.slot[0]}: {why}"
            self._set(first_failure=(code or 1, words, worker.birth))
        if slot_is_to_blame:
            self._punish(worker)

    def _punish(self, worker: Worker) -> None:
        """The slot alone: the other slots of its host have done nothing."""
        lasted = worker.member_since is not None and self.now - worker.member_since >= LASTING_S
        count = 1 if lasted else self.state.failures.get(worker.slot, 0) + 1
        self.state.failures[worker.slot] = count
        if self.state.limits.cooldown is not None:
            low, high = self.state.limits.cooldown
            self.state.rests_until[worker.slot] = self.now + min(high, low * 2.0 ** min(count - 1, 30))
        elif count >= MOST_FAILURES:
            self.state.rests_until[worker.slot] = math.inf

    # What follows

    def settle(self) -> None:
        self._kill_overdue()
        self._dismiss_newcomers_without_slot()
        if self._is_hopeless():
            return
        self._start_workers()
        self._form_generation()
        self._watch_time()
        self._remind_members()

    def _give_up(self, why: str, code: int = 1, worker: int | None = None) -> None:
        self.actions.append(GiveUp(why, code, worker))
        self._set(over=True)

    def _kill_overdue(self) -> None:
        for worker in [worker for worker in self.state.workers.values() if worker.until <= self.now]:
            if worker.phase is Phase.LEAVING:
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, until=math.inf))
            elif worker.phase is Phase.MEMBER:
                # Thawed, it would write into the memory that it shares with the others: they wait for its end.
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, phase=Phase.FENCED, until=self.now + UNKILLABLE_S))
            elif worker.phase is Phase.FENCED:
                self._lose(worker, 1, FENCED_WHY)

    def _dismiss(self, worker: Worker, why: str) -> None:
        if worker.phase is Phase.READY and worker.rank is not None:  # a newcomer has nothing to put in order
            self.actions.append(Dismiss(worker.birth, why))
        else:
            self.actions.append(Signal(worker.birth, signal.SIGTERM))
        self._put(replace(worker, phase=Phase.LEAVING, until=self.now + LEAVING_S))

    def _dismiss_newcomers_without_slot(self) -> None:
        all_done = self.state.finished and self.state.generation >= 0 and not self.state.survivors()
        for worker in self.state.newcomers():
            if all_done:
                self._dismiss(worker, "the job is done")
            elif not self.state.is_offered(worker.slot):
                self._dismiss(worker, f"its slot on {worker.slot[0]} is gone")

    def _usable_slots(self) -> list[Slot]:
        """Those without a worker that do not rest."""
        taken = {worker.slot for worker in self.state.workers.values()}
        every = [(host, number) for host, slots in self.state.hosts.items() for number in range(slots)]
        return [slot for slot in every if slot not in taken and slot not in self.state.rests_until]

    def _staying(self) -> list[Worker]:
        everybody = [*self.state.survivors(), *self.state.newcomers()]
        return [worker for worker in everybody if self.state.is_offered(worker.slot)]

    def _is_hopeless(self) -> bool:
        """Gives up if no generation can come any more."""
        state, limits = self.state, self.state.limits
        if state.finished:
            return False
        code, failure, worker = state.first_failure or (1, "", None)
        because = f" (first failure: {failure})" if failure else ""
        if state.generation >= 0 and not state.survivors():
            self._give_up(f"no worker is left that could hand its state to new ones{because}", code, worker)
            return True
        resting = [slot for slot, until in state.rests_until.items() if until < math.inf and state.is_offered(slot)]
        possible = len(self._staying()) + len(self._usable_slots()) + len(resting) + state.awaited
        # Others may come, but wherever the program was tried it has never even begun.
        in_vain = possible == 0 and state.generation < 0 and state.first_failure is not None
        if in_vain or (limits.fixed_hosts and state.hosts and possible < limits.min_num_proc):
            self._give_up(
                f"only {possible} workers are possible, and --min-np asks for {limits.min_num_proc}: "
                f"slots whose workers failed {MOST_FAILURES} times are not used any more{because}",
                code,
                worker,
            )
            return True
        return False

    def _start_workers(self) -> None:
        state, limits = self.state, self.state.limits
        if state.finished:
            return
        free = self._usable_slots()
        if state.next_birth == 0 and len(free) < limits.num_proc:
            return  # as many as asked for must be there before anything starts
        for slot in free[: max(0, limits.max_num_proc - len(self._staying()))]:
            birth = self.state.next_birth
            self._put(Worker(birth, slot))
            self._set(next_birth=birth + 1)
            self.actions.append(Start(birth, slot))

    def _form_generation(self) -> None:
        state = self.state
        survivors = state.survivors()
        is_last = state.finished and state.generation >= 0
        if is_last and not survivors:
            return
        if any(worker.phase is not Phase.READY for worker in survivors):
            return
        if state.generation < 0 and any(worker.phase is Phase.STARTING for worker in state.newcomers()):
            return  # all begin together
        removed = [worker for worker in survivors if not state.is_offered(worker.slot)]
        if survivors and len(removed) == len(survivors) and not state.finished:
            self._give_up("every worker that has the state is on a host that was taken away")
            return
        for worker in removed:
            self._dismiss(worker, f"its slot on {worker.slot[0]} is gone")
        staying = [worker for worker in survivors if worker not in removed]
        ready = [worker for worker in state.newcomers() if worker.phase is Phase.READY and not is_last]
        chosen = [*staying, *ready][: state.limits.max_num_proc]
        need = 1 if state.finished else state.limits.min_num_proc
        if not chosen:
            return
        if len(chosen) < need:
            if not state.said_waiting:
                self.actions.append(Waiting(len(chosen), need))
                self._set(said_waiting=True)
            return
        self._announce(chosen, [worker for worker in chosen if worker not in staying])

    def _announce(self, chosen: list[Worker], new: Iterable[Worker]) -> None:
        state, first = self.state, self.state.generation < 0
        if not first and state.limits.reset_limit is not None and state.generation >= state.limits.reset_limit:
            self._give_up(RESET_LIMIT_EXCEEDED_MESSAGE.format(state.generation + 1, state.limits.reset_limit))
            return
        places = places_of([(worker.birth, worker.slot, worker.rank) for worker in chosen])
        gone = self._removed_members({worker.birth for worker in chosen})
        self.actions.append(
            Announce(
                generation=state.generation + 1,
                places=places,
                left=(*state.left, *gone),
                came=tuple(worker.birth for worker in new) if not first else (),
                took_s=None if first or state.changing_since is None else self.now - state.changing_since,
            )
        )
        for worker in chosen:
            since = worker.member_since if worker.member_since is not None else self.now
            self._put(replace(worker, phase=Phase.MEMBER, rank=places[worker.birth].rank, member_since=since))
        self._set(
            generation=state.generation + 1,
            members=tuple(sorted(places, key=lambda birth: places[birth].rank)),
            left=(),
            changing_since=None,
            waiting_since=None,
            said_waiting=False,
            notified_at=-math.inf,
            first_failure=None,
        )

    def _removed_members(self, chosen: set[int]) -> list[Left]:
        """Members that live, but only in order to leave."""
        found = [self.state.workers[birth] for birth in self.state.members if birth in self.state.workers]
        return [
            Left(worker.rank if worker.rank is not None else -1, worker.birth, f"its slot on {worker.slot[0]} is gone")
            for worker in found
            if worker.birth not in chosen
        ]

    def _watch_time(self) -> None:
        state = self.state
        if state.over:
            return
        resets = any(worker.phase is Phase.READY for worker in state.survivors())
        lacks_slots = state.generation < 0 and len(self._staying()) < state.limits.num_proc
        if not (resets or lacks_slots):
            self._set(waiting_since=None)
        elif state.waiting_since is None:
            self._set(waiting_since=self.now)
        elif self.now >= state.waiting_since + state.limits.timeout_s:
            ready = sum(worker.phase is Phase.READY for worker in state.workers.values())
            need = state.limits.num_proc if state.generation < 0 else state.limits.min_num_proc
            self._give_up(
                f"after {state.limits.timeout_s:g} s (--elastic-timeout) {ready} workers are ready, {need} are needed, "
                f"and {sum(state.hosts.values())} slots are known"
            )

    def _remind_members(self) -> None:
        state = self.state
        update = 0 if state.over else _pending_update(state)
        if not update or self.now < state.notified_at + REMINDER_S:
            return
        self._begin_change()
        self.actions.append(Notify(state.members, state.generation, update))
        self._set(notified_at=self.now)
