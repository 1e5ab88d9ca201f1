# SPDX-License-Identifier: Apache-2.0
"""Membership decisions of an elastic job, as a pure function of (state, event, now). driving.py carries them out.

    starting --asks for a place--> ready --announced--> member --a peer was lost, or a commit--> ready --> member ...
    any of them --its slot was taken away, or it was preempted--> leaving --> ended
    member --a peer has lost it, and it does not ask for a place itself--> fenced (killed) --> ended
    member --an exception ends it, but its process does not end in time--> fenced (killed) --> ended

Workers are identified by their birth ids, because a rank is only valid in one generation. A generation is announced
once every living member of the last one waits for it, so two groups never train at once. Spares are workers that are
ready while there is no room for them.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from dataclasses import replace

from horovod.common.joining.loss import Loss
from horovod.common.lineage import merged
from horovod.launcher.elastic import cut_rules
from horovod.launcher.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from horovod.launcher.elastic.places import resettled
from horovod.launcher.elastic.state import PREEMPTED_WHY, REMINDER_S, SPARE_S, State, pending_update
from horovod.launcher.elastic.vocabulary import (
    Action,
    Announce,
    Call,
    Close,
    Discovered,
    Dismiss,
    Ended,
    Event,
    Excuse,
    Fails,
    Failure,
    GiveUp,
    HostGone,
    Leaves,
    Left,
    Listens,
    Notify,
    Phase,
    Preempted,
    Probed,
    Ready,
    Saw,
    Signal,
    Start,
    Tick,
    Told,
    Waiting,
    Worker,
    rest_after,
)

MOST_FAILURES = 3  # failures of workers in one slot after which it is no longer used, if there is no cooldown range
LASTING_S = 2.0  # a worker that was a member for this time has shown that its slot works
LEAVING_S = 10.0
GOING_S = 60.0  # how long the slot of a preempted worker is not used; a host that goes away is gone by then
MOST_TOLD = 20  # failures in the table at the end
FENCE_S = 1.0  # after a peer has lost a worker: time for its end to be reported, or for it to ask for a place
LINGER_S = 5.0  # time for a worker's process to end after the worker has reported an exception
FENCED_WHY = "the others heard nothing more of it (was it frozen, or cut off?), so it was killed"
KILLED_BY_SIGNAL = 128  # exit codes from here on mean that a signal ended the worker
CUT_OFF_WHY = "it does not reach all others, and waits until it does"
# time for a killed worker to end on an unresponsive host or in the kernel; then the others go on without waiting
UNKILLABLE_S = 3.0


def decide(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
    """Return the state after an event, and the actions to take."""
    if state.over:
        return state, []
    turn = _Turn(state, now)
    turn.take(event)
    turn.settle()
    return turn.state, turn.actions


class _Turn:
    """One call of `decide`, which works on a copy of the state."""

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

    def _follow(self, decided: tuple[State, list[Action]]) -> None:
        self.state, actions = decided
        self.actions += actions

    # Handling of the event

    def take(self, event: Event) -> None:
        match event:
            case Discovered(hosts, awaited):
                self._settle_on(hosts, awaited)
            case HostGone(host, why):
                for worker in [worker for worker in self.state.workers.values() if worker.slot[0] == host]:
                    self._lose(worker, 1, why, slot_is_to_blame=False)
                self._set(hosts={name: slots for name, slots in self.state.hosts.items() if name != host})
            case Ready(birth, lost, fresh, seen):
                self._set(seen=merged(self.state.seen, seen))
                self._welcome(birth, fresh)
                if lost is not None and birth in self.state.members:
                    self._suspect(birth, lost)
            case Ended(birth, code, how, blames_peer):
                if birth in self.state.workers:
                    self._lose(self.state.workers[birth], code, how, blames_peer=blames_peer)
            case Preempted(birth):
                self._excuse(birth)
            case Probed():
                self._follow(cut_rules.take_answer(self.state, event, self.now))
            case Saw() | Fails() | Leaves() | Told() | Listens():
                self._note(event)
            case Tick():
                pass

    def _note(self, event: Saw | Fails | Leaves | Told | Listens) -> None:
        """Record what a worker reports about itself while it goes on."""
        if isinstance(event, Saw):
            self._set(seen=merged(self.state.seen, event.seen))
            return
        known = self.state.workers.get(event.birth)
        if known is not None and isinstance(event, Fails):
            self._put(replace(known, fails=event.why))
        elif known is not None and isinstance(event, Leaves):
            if known.phase is Phase.MEMBER:  # the other members wait for its end
                self._put(replace(known, leaves=event, until=min(known.until, self.now + LINGER_S)))
        elif known is not None:
            self._put(replace(known, listens=True, unanswered=0))

    def _settle_on(self, hosts: dict[str, int], awaited: int) -> None:
        """Take over the discovered hosts, known hosts first, so that rank 0 keeps its host."""
        kept = {host: hosts[host] for host in self.state.hosts if host in hosts}
        self._set(hosts=kept | hosts, awaited=awaited)
        for birth, slot in resettled(self.state.by_seniority(), self.state.hosts).items():
            self._put(replace(self.state.workers[birth], slot=slot))

    def _welcome(self, birth: int, fresh: bool) -> None:
        known = self.state.workers.get(birth)
        if known is None or known.phase in (Phase.LEAVING, Phase.FENCED):
            self.actions.append(Dismiss(birth, "this worker does not belong to the job any more"))
            return
        if birth in self.state.members:
            self._begin_change()
            self._set(has_trained=self.state.has_trained or not fresh)
        if known.phase is Phase.STARTING:
            self._set(slowest_start_s=max(self.state.slowest_start_s, self.now - known.started))
        known = replace(known, fails="", leaves=None)
        self._put(replace(known, phase=Phase.READY, until=math.inf, fresh=fresh, ready_since=self.now))

    def _suspect(self, birth: int, lost: Loss) -> None:
        """Handle the report that a member was lost.

        It may have ended, ask for a place soon, be frozen, or be cut off.
        """
        self._set(cuts=cut_rules.with_loss(self.state, birth, lost, self.now))
        accused = cut_rules.member_of(self.state, lost.rank)
        if accused is not None and accused.phase is Phase.MEMBER and accused.until == math.inf:
            may_be_cut = cut_rules.concerns(self.state.cuts, accused)
            self._put(cut_rules.doubted(self.state, accused, self.now) if may_be_cut else self._fenced_soon(accused))

    def _fenced_soon(self, worker: Worker) -> Worker:
        return replace(worker, until=self.now + FENCE_S)

    def _excuse(self, birth: int) -> None:
        known = self.state.workers.get(birth)
        trains = known is not None and known.phase in (Phase.MEMBER, Phase.READY) and birth in self.state.members
        self.actions.append(Excuse(birth, trains))
        if known is not None and trains:
            self._put(replace(known, preempted=True))

    def _begin_change(self) -> None:
        if self.state.changing_since is None:
            self._set(changing_since=self.now)

    def _lose(
        self, worker: Worker, code: int, why: str, *, slot_is_to_blame: bool = True, blames_peer: bool = False
    ) -> None:
        del self.state.workers[worker.birth]
        was_killed = worker.phase is Phase.FENCED and slot_is_to_blame
        if worker.leaves is not None:
            code, why = worker.leaves.end(code, why, was_killed=was_killed)
            blames_peer = blames_peer or worker.leaves.blames_peer
        elif was_killed:
            why = FENCED_WHY
        was_member = worker.birth in self.state.members
        why = worker.why or (f"{PREEMPTED_WHY}, then {why}" if worker.preempted else why)
        if was_member and worker.rank is not None:
            self._set(left=(*self.state.left, Left(worker.rank, worker.birth, why)))
        if worker.phase is Phase.LEAVING:
            return
        # the worker was a member, or its program does not use Horovod's ranks
        if code == 0 and (was_member or self.state.generation < 0):
            self._set(finished=True)
            return
        if was_member:
            self._begin_change()
            self.actions.append(Close(self.state.generation, f"rank {worker.rank} has ended: {why}"))
        reported = worker.leaves.what if worker.leaves else None
        self._record(Failure(worker.birth, worker.slot, why, self.state.generation, blames_peer, reported), code or 1)
        if worker.fails and 0 < code < KILLED_BY_SIGNAL:
            self._give_up(worker.fails, code, worker.birth)
        elif slot_is_to_blame:
            self._punish(worker)

    def _record(self, failure: Failure, code: int) -> None:
        """Add a failure to the history.

        A cause comes before the failures that followed, even if it is reported later.
        """
        consequences = [
            one
            for one in self.state.history
            if one.blames_peer and one.generation == failure.generation and not failure.blames_peer
        ]
        earlier = [one for one in self.state.history if one not in consequences]
        first = self.state.first_failure
        if first is None or any(one.birth == first[2] for one in consequences):
            words = f"worker {failure.birth} on {failure.slot[0]}: {failure.why}"
            self._set(first_failure=(code, words, failure.birth))
        self._set(history=(*earlier, failure, *consequences)[-MOST_TOLD:])

    def _punish(self, worker: Worker) -> None:
        """Let the worker's slot rest. The other slots of its host are not affected."""
        if worker.preempted:
            self.state.rests_until[worker.slot] = self.now + GOING_S
            return
        lasted = worker.member_since is not None and self.now - worker.member_since >= LASTING_S
        count = 1 if lasted else self.state.failures.get(worker.slot, 0) + 1
        self.state.failures[worker.slot] = count
        if self.state.limits.cooldown is not None:
            self.state.rests_until[worker.slot] = self.now + rest_after(count, self.state.limits.cooldown)
        elif count >= MOST_FAILURES:
            self.state.rests_until[worker.slot] = math.inf

    # Consequences

    def settle(self) -> None:
        if self.state.over:
            return
        self._kill_overdue()
        self._call_awaited_members()
        self._dismiss_newcomers_without_slot()
        if self._is_hopeless():
            return
        self._start_workers()
        self._follow(cut_rules.look(self.state, self.now))
        self._form_generation()
        self._watch_time()
        self._remind_members()

    def _give_up(self, why: str, code: int = 1, worker: int | None = None) -> None:
        self.actions.append(GiveUp(why, code, worker, self.state.history))
        self._set(over=True)

    def _kill_overdue(self) -> None:
        for worker in [worker for worker in self.state.workers.values() if worker.until <= self.now]:
            if worker.phase is Phase.LEAVING:
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, until=math.inf))
            elif worker.phase is Phase.MEMBER:
                # A frozen worker that resumes would write into memory shared with the others, so they wait for its end.
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, phase=Phase.FENCED, until=self.now + UNKILLABLE_S))
            elif worker.phase is Phase.FENCED:
                self._lose(worker, 1, FENCED_WHY)
        for worker in [worker for worker in self.state.workers.values() if worker.phase is Phase.STARTING]:
            if self.state.start_deadline(worker) <= self.now:
                why = (
                    f"it had not called hvd.init() {self.now - worker.started:.0f} s after its start, so it was killed"
                )
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, phase=Phase.FENCED, until=self.now + UNKILLABLE_S, why=why))

    def _call_awaited_members(self) -> None:
        """Ask awaited members for a sign of life, and kill those that left too many questions unanswered.

        Questions are counted, not seconds, because a launcher that was suspended has not asked meanwhile.
        """
        awaited = self.state.awaited_members()
        if not awaited or self.now < self.state.next_call():
            return
        for worker in awaited:
            if worker.unanswered * REMINDER_S < self.state.limits.silence_s:
                self._put(replace(worker, unanswered=worker.unanswered + 1))
            else:
                self.actions.append(Signal(worker.birth, signal.SIGKILL))
                self._put(replace(worker, phase=Phase.FENCED, until=self.now + UNKILLABLE_S))
        self.actions.append(Call(tuple(worker.birth for worker in awaited)))
        self._set(called_at=self.now)

    def _dismiss(self, worker: Worker, why: str) -> None:
        # Answer a former member, so that it ends its work properly.
        if worker.phase is Phase.READY and worker.rank is not None:
            self.actions.append(Dismiss(worker.birth, why))
        else:
            self.actions.append(Signal(worker.birth, signal.SIGTERM))
        self._put(replace(worker, phase=Phase.LEAVING, until=self.now + LEAVING_S, why=why))
        if worker.preempted:
            self.state.rests_until[worker.slot] = self.now + GOING_S

    def _dismiss_newcomers_without_slot(self) -> None:
        all_done = self.state.finished and self.state.generation >= 0 and not self.state.survivors()
        for worker in self.state.newcomers():
            if all_done:
                self._dismiss(worker, "the job is done")
            elif not self.state.is_offered(worker.slot):
                self._dismiss(worker, f"its slot on {worker.slot[0]} is gone")

    def _is_hopeless(self) -> bool:
        """Give up and return True if no further generation is possible.

        Also return True while the last members leave.
        """
        state, limits = self.state, self.state.limits
        if state.finished:
            return False
        code, failure, worker = state.first_failure or (1, "", None)
        because = f" (first failure: {failure})" if failure else ""
        if state.generation >= 0 and not state.survivors():
            if any(birth in state.workers for birth in state.members):
                return True  # they are leaving: wait for their final output first
            old = state.who_waits_with_an_old_state()
            self._give_up(f"no worker is left that could hand its state to new ones{old}{because}", code, worker)
            return True
        resting = {slot for slot, until in state.rests_until.items() if until < math.inf}
        taken = {worker.slot for worker in state.workers.values()}
        possible = len({slot for slot in (*resting, *taken, *state.usable_slots()) if state.is_offered(slot)})
        possible += state.awaited
        # Other hosts may come, but the program failed on every host before it ever started training.
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
        free = state.usable_slots()
        if state.next_birth == 0 and len(free) < limits.num_proc:
            return  # as many slots as the user asked for must be there before anything starts
        for slot in free[: max(0, state.room() + limits.spares - len(state.staying()))]:
            birth = self.state.next_birth
            self._put(Worker(birth, slot, started=self.now))
            self._set(next_birth=birth + 1)
            self.actions.append(Start(birth, slot))

    def _form_generation(self) -> None:
        state = self.state
        survivors = state.survivors()
        is_last = state.finished and state.generation >= 0
        if is_last and not survivors:
            return
        if any(worker.phase is not Phase.READY for worker in survivors) or state.cuts.holds_back(self.now):
            return
        if state.has_trained and survivors and all(worker.fresh for worker in survivors):
            self._give_up("those who had the state have ended before they could hand it to new workers")
            return
        newcomers = state.newcomers()
        room = state.room()
        ready = [worker for worker in newcomers if worker.phase is Phase.READY and not is_last]
        if state.generation < 0 and len(ready) < min(room, len(newcomers)):
            return  # all workers begin together, including spares
        removed = [worker for worker in survivors if state.must_leave(worker)]
        if survivors and len(removed) == len(survivors) and not state.finished:
            if any(worker.preempted for worker in removed) or not (newcomers or state.usable_slots()) or room < 2:
                self._part_with_all(removed)
                return
            if not ready:
                return  # new workers are starting; the leaving members hand the state to them
            removed.remove(next(worker for worker in survivors if not worker.fresh or not state.has_trained))
        for worker in removed:
            self._dismiss(worker, state.must_leave(worker))
        staying = [worker for worker in survivors if worker not in removed]
        self._set(cuts=cut_rules.judged(self.state, self.now))
        reachable = self.state.mutually_reachable([*staying, *ready])
        chosen = reachable[:room]
        need = 1 if state.finished else state.limits.min_num_proc
        if not chosen or self._waits_for_spare(len(chosen) < room):
            return
        if len(chosen) < need:
            if not state.said_waiting or cut_rules.has_news(self.state):
                self.actions.append(Waiting(len(chosen), need, self._who_still_starts(), self.state.cuts.bad))
                self._set(said_waiting=True, cuts=cut_rules.as_said(self.state))
            return
        self._follow(cut_rules.report(self.state, chosen, [one for one in (*staying, *ready) if one not in reachable]))
        self._announce(chosen, [worker for worker in chosen if worker not in staying])

    def _part_with_all(self, removed: list[Worker]) -> None:
        """Dismiss all members that have the state, none of which may stay. Give up unless they were preempted."""
        if not any(worker.preempted for worker in removed):
            self._give_up("every worker that has the state is on a host that was taken away")
            return
        self._set(first_failure=(128 + signal.SIGTERM, "all workers were preempted (SIGTERM)", None))
        for worker in removed:
            self._dismiss(worker, self.state.must_leave(worker))

    def _waits_for_spare(self, has_room: bool) -> bool:
        """Return True while survivors wait for a spare that was starting before a member was lost.

        A replacement started after the loss would take longer, so survivors do not wait for it.
        """
        state = self.state
        began = state.changing_since if state.changing_since is not None else self.now
        coming = [one for one in state.newcomers() if one.phase is Phase.STARTING and one.started < began]
        since = state.waiting_since if state.waiting_since is not None else self.now
        may_wait = bool(state.limits.spares and state.left and has_room and coming) and not state.finished
        self._set(awaits_spare=may_wait and self.now < since + SPARE_S)
        return self.state.awaits_spare

    def _announce(self, chosen: list[Worker], new: Iterable[Worker]) -> None:
        state, first = self.state, self.state.generation < 0
        if not first and state.limits.reset_limit is not None and state.generation >= state.limits.reset_limit:
            self._give_up(RESET_LIMIT_EXCEEDED_MESSAGE.format(state.limits.reset_limit))
            return
        places = state.places(chosen)
        gone = self._removed_members({worker.birth for worker in chosen})
        others = state.newcomers() if state.limits.spares else []  # without spares, all newcomers become members
        self.actions.append(
            Announce(
                generation=state.generation + 1,
                places=places,
                left=(*state.left, *gone),
                came=tuple(worker.birth for worker in new) if not first else (),
                took_s=None if first or state.changing_since is None else self.now - state.changing_since,
                spares=tuple(worker.birth for worker in others if worker not in chosen),
            )
        )
        for worker in chosen:
            since = worker.member_since if worker.member_since is not None else self.now
            rank = places[worker.birth].rank
            self._put(replace(worker, phase=Phase.MEMBER, rank=rank, member_since=since, unanswered=0))
        self._set(
            generation=state.generation + 1,
            members=tuple(sorted(places, key=lambda birth: places[birth].rank)),
            left=(),
            changing_since=None,
            waiting_since=None,
            said_waiting=False,
            notified_at=-math.inf,
            called_at=-math.inf,
            awaits_spare=False,
            first_failure=None,
            cuts=replace(self.state.cuts, announced_at=self.now),
        )

    def _removed_members(self, chosen: set[int]) -> list[Left]:
        """Return the living members that are not in the new generation, with the reason."""
        state = self.state
        found = [state.workers[birth] for birth in state.members if birth in state.workers]
        return [
            Left(
                worker.rank if worker.rank is not None else -1,
                worker.birth,
                worker.why or state.must_leave(worker) or CUT_OFF_WHY,
            )
            for worker in found
            if worker.birth not in chosen
        ]

    def _watch_time(self) -> None:
        state = self.state
        if state.over:
            return
        resets = any(worker.phase is Phase.READY for worker in state.survivors())
        lacks_slots = state.generation < 0 and len(state.staying()) < state.limits.num_proc
        if not (resets or lacks_slots):
            self._set(waiting_since=None)
        elif state.waiting_since is None:
            self._set(waiting_since=self.now)
        elif self.now >= state.waiting_since + state.limits.timeout_s:
            ready = sum(worker.phase is Phase.READY for worker in state.workers.values())
            need = state.limits.num_proc if state.generation < 0 else state.limits.min_num_proc
            self._give_up(
                f"after {state.limits.timeout_s:g} s (--elastic-timeout) {ready} workers are ready, {need} are needed, "
                f"and {sum(state.hosts.values())} slots are known{self._who_still_starts()}"
                + (f"; {state.cuts.bad}" if state.cuts.bad else "")
            )

    def _who_still_starts(self) -> str:
        names = [
            f"worker {one.birth} on {one.slot[0]}" for one in self.state.newcomers() if one.phase is Phase.STARTING
        ]
        return f"; still being started: {', '.join(names)}" if names else ""

    def _remind_members(self) -> None:
        state = self.state
        update = 0 if state.over else pending_update(state, self.now)
        if not update or self.now < state.notified_at + REMINDER_S:
            return
        self._begin_change()
        self.actions.append(Notify(state.members, state.generation, update))
        self._set(notified_at=self.now)
