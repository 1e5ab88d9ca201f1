# SPDX-License-Identifier: Apache-2.0
"""Rules for what is due in an elastic job: workers to kill, ask, dismiss, start or remind, and time limits."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

from horovod.launcher.elastic.end_rules import FENCED_WHY, MOST_FAILURES, EndRules
from horovod.launcher.elastic.state import REMINDER_S, pending_update
from horovod.launcher.elastic.turn import Turn
from horovod.launcher.elastic.vocabulary import Call, Notify, Phase, Signal, Start, Worker


class UpkeepRules:
    """Work that is due in one turn."""

    def __init__(self, turn: Turn, ends: EndRules) -> None:
        self._turn = turn
        self._ends = ends

    def kill_overdue(self) -> None:
        turn = self._turn
        for worker in [worker for worker in turn.state.workers.values() if worker.until <= turn.now]:
            if worker.phase is Phase.LEAVING:
                turn.actions.append(Signal(worker.birth, signal.SIGKILL))
                turn.put(replace(worker, until=math.inf))
            elif worker.phase is Phase.MEMBER:
                # A frozen worker that resumes would write into memory shared with the others, so they wait for its end.
                turn.kill(worker)
            elif worker.phase is Phase.FENCED:
                self._ends.lose(worker, 1, FENCED_WHY)
        for worker in [worker for worker in turn.state.workers.values() if worker.phase is Phase.STARTING]:
            if turn.state.start_deadline(worker) <= turn.now:
                why = (
                    f"it had not called hvd.init() {turn.now - worker.started:.0f} s after its start, so it was killed"
                )
                turn.kill(worker, why)

    def call_awaited_members(self) -> None:
        """Ask awaited members for a sign of life, and kill those that left too many questions unanswered.

        Questions are counted, not seconds, because a launcher that was suspended has not asked meanwhile.
        """
        turn = self._turn
        awaited = turn.state.awaited_members()
        if not awaited or turn.now < turn.state.next_call():
            return
        for worker in awaited:
            if worker.unanswered * REMINDER_S < turn.state.limits.silence_s:
                turn.put(replace(worker, unanswered=worker.unanswered + 1))
            else:
                turn.kill(worker)
        turn.actions.append(Call(tuple(worker.birth for worker in awaited)))
        turn.set(called_at=turn.now)

    def dismiss_newcomers_without_slot(self) -> None:
        turn = self._turn
        all_done = turn.state.finished and turn.state.generation >= 0 and not turn.state.survivors()
        for worker in turn.state.newcomers():
            if all_done:
                turn.dismiss(worker, "the job is done")
            elif not turn.state.is_offered(worker.slot):
                turn.dismiss(worker, f"its slot on {worker.slot[0]} is gone")

    def is_hopeless(self) -> bool:
        """Give up and return True if no further generation is possible.

        Also return True while the last members leave.
        """
        turn = self._turn
        state, limits = turn.state, turn.state.limits
        if state.finished:
            return False
        code, failure, worker = state.first_failure or (1, "", None)
        because = f" (first failure: {failure})" if failure else ""
        if state.generation >= 0 and not state.survivors():
            if any(birth in state.workers for birth in state.members):
                return True  # they are leaving: wait for their final output first
            old = state.who_waits_with_an_old_state()
            turn.give_up(f"no worker is left that could hand its state to new ones{old}{because}", code, worker)
            return True
        resting = {slot for slot, until in state.rests_until.items() if until < math.inf}
        taken = {worker.slot for worker in state.workers.values()}
        possible = len({slot for slot in (*resting, *taken, *state.usable_slots()) if state.is_offered(slot)})
        possible += state.awaited
        # Other hosts may come, but the program failed on every host before it ever started training.
        in_vain = possible == 0 and state.generation < 0 and state.first_failure is not None
        if in_vain or (limits.fixed_hosts and state.hosts and possible < limits.min_num_proc):
            turn.give_up(
                f"only {possible} workers are possible, and --min-np asks for {limits.min_num_proc}: "
                f"slots whose workers failed {MOST_FAILURES} times are not used any more{because}",
                code,
                worker,
            )
            return True
        return False

    def start_workers(self) -> None:
        turn = self._turn
        state, limits = turn.state, turn.state.limits
        if state.finished:
            return
        free = state.usable_slots()
        if state.next_birth == 0 and len(free) < limits.num_proc:
            return  # as many slots as the user asked for must be there before anything starts
        for slot in free[: max(0, state.room() + limits.spares - len(state.staying()))]:
            birth = turn.state.next_birth
            turn.put(Worker(birth, slot, started=turn.now))
            turn.set(next_birth=birth + 1)
            turn.actions.append(Start(birth, slot))

    def watch_time(self) -> None:
        turn, state = self._turn, self._turn.state
        if state.over:
            return
        resets = any(worker.phase is Phase.READY for worker in state.survivors())
        lacks_slots = state.generation < 0 and len(state.staying()) < state.limits.num_proc
        if not (resets or lacks_slots):
            turn.set(waiting_since=None)
        elif state.waiting_since is None:
            turn.set(waiting_since=turn.now)
        elif turn.now >= state.waiting_since + state.limits.timeout_s:
            ready = sum(worker.phase is Phase.READY for worker in state.workers.values())
            need = state.limits.num_proc if state.generation < 0 else state.limits.min_num_proc
            turn.give_up(
                f"after {state.limits.timeout_s:g} s (--elastic-timeout) {ready} workers are ready, {need} are needed, "
                f"and {sum(state.hosts.values())} slots are known{turn.names_of_starting()}"
                + (f"; {state.cuts.bad}" if state.cuts.bad else "")
            )

    def remind_members(self) -> None:
        turn, state = self._turn, self._turn.state
        update = 0 if state.over else pending_update(state, turn.now)
        if not update or turn.now < state.notified_at + REMINDER_S:
            return
        turn.begin_change()
        turn.actions.append(Notify(state.members, state.generation, update))
        turn.set(notified_at=turn.now)
