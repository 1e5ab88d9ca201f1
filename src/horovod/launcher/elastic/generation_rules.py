# SPDX-License-Identifier: Apache-2.0
"""Rules for the next generation of an elastic job: when it can begin, and with which workers."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from dataclasses import replace

from horovod.launcher.elastic import cut_rules
from horovod.launcher.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from horovod.launcher.elastic.state import SPARE_S
from horovod.launcher.elastic.turn import Turn
from horovod.launcher.elastic.vocabulary import Announce, Left, Phase, Waiting, Worker

CUT_OFF_WHY = "it does not reach all others, and waits until it does"


class GenerationRules:
    """Formation of the next generation in one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def form(self) -> None:
        turn, state = self._turn, self._turn.state
        survivors = state.survivors()
        is_last = state.finished and state.generation >= 0
        if is_last and not survivors:
            return
        if any(worker.phase is not Phase.READY for worker in survivors) or state.cuts.holds_back(turn.now):
            return
        if state.has_trained and survivors and all(worker.fresh for worker in survivors):
            turn.give_up("those who had the state have ended before they could hand it to new workers")
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
            turn.dismiss(worker, state.must_leave(worker))
        staying = [worker for worker in survivors if worker not in removed]
        turn.set(cuts=cut_rules.judged(turn.state, turn.now))
        reachable = turn.state.mutually_reachable([*staying, *ready])
        chosen = reachable[:room]
        need = 1 if state.finished else state.limits.min_num_proc
        if not chosen or self._waits_for_spare(len(chosen) < room):
            return
        if len(chosen) < need:
            if not state.said_waiting or cut_rules.has_news(turn.state):
                turn.actions.append(Waiting(len(chosen), need, turn.names_of_starting(), turn.state.cuts.bad))
                turn.set(said_waiting=True, cuts=cut_rules.as_said(turn.state))
            return
        turn.follow(cut_rules.report(turn.state, chosen, [one for one in (*staying, *ready) if one not in reachable]))
        self._announce(chosen, [worker for worker in chosen if worker not in staying])

    def _part_with_all(self, removed: list[Worker]) -> None:
        """Dismiss all members that have the state, none of which may stay. Give up unless they were preempted."""
        turn = self._turn
        if not any(worker.preempted for worker in removed):
            turn.give_up("every worker that has the state is on a host that was taken away")
            return
        turn.set(first_failure=(128 + signal.SIGTERM, "all workers were preempted (SIGTERM)", None))
        for worker in removed:
            turn.dismiss(worker, turn.state.must_leave(worker))

    def _waits_for_spare(self, has_room: bool) -> bool:
        """Return True while survivors wait for a spare that was starting before a member was lost.

        A replacement started after the loss would take longer, so survivors do not wait for it.
        """
        turn, state = self._turn, self._turn.state
        began = state.changing_since if state.changing_since is not None else turn.now
        coming = [one for one in state.newcomers() if one.phase is Phase.STARTING and one.started < began]
        since = state.waiting_since if state.waiting_since is not None else turn.now
        may_wait = bool(state.limits.spares and state.left and has_room and coming) and not state.finished
        turn.set(awaits_spare=may_wait and turn.now < since + SPARE_S)
        return turn.state.awaits_spare

    def _announce(self, chosen: list[Worker], new: Iterable[Worker]) -> None:
        turn = self._turn
        state, first = turn.state, turn.state.generation < 0
        if not first and state.limits.reset_limit is not None and state.generation >= state.limits.reset_limit:
            turn.give_up(RESET_LIMIT_EXCEEDED_MESSAGE.format(state.limits.reset_limit))
            return
        places = state.places(chosen)
        gone = self._removed_members({worker.birth for worker in chosen})
        others = state.newcomers() if state.limits.spares else []  # without spares, all newcomers become members
        turn.actions.append(
            Announce(
                generation=state.generation + 1,
                places=places,
                left=(*state.left, *gone),
                came=tuple(worker.birth for worker in new) if not first else (),
                took_s=None if first or state.changing_since is None else turn.now - state.changing_since,
                spares=tuple(worker.birth for worker in others if worker not in chosen),
            )
        )
        for worker in chosen:
            since = worker.member_since if worker.member_since is not None else turn.now
            rank = places[worker.birth].rank
            turn.put(replace(worker, phase=Phase.MEMBER, rank=rank, member_since=since, unanswered=0))
        turn.set(
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
            cuts=replace(turn.state.cuts, announced_at=turn.now),
        )

    def _removed_members(self, chosen: set[int]) -> list[Left]:
        """Return the living members that are not in the new generation, with the reason."""
        state = self._turn.state
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
