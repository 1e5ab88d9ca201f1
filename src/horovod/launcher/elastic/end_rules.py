# SPDX-License-Identifier: Apache-2.0
"""Rules for the end of a worker of an elastic job: who is to blame, and what follows for its slot and the others."""

from __future__ import annotations

import math

from horovod.launcher.elastic.state import PREEMPTED_WHY
from horovod.launcher.elastic.turn import GOING_S, Turn
from horovod.launcher.elastic.vocabulary import Close, Failure, Left, Phase, Worker, rest_after

MOST_FAILURES = 3  # failures of workers in one slot after which it is no longer used, if there is no cooldown range
LASTING_S = 2.0  # a worker that was a member for this time has shown that its slot works
MOST_TOLD = 20  # failures in the table at the end
FENCED_WHY = "the others heard nothing more of it (was it frozen, or cut off?), so it was killed"
KILLED_BY_SIGNAL = 128  # exit codes from here on mean that a signal ended the worker


class EndRules:
    """Ends of workers in one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def lose(
        self, worker: Worker, code: int, why: str, *, slot_is_to_blame: bool = True, blames_peer: bool = False
    ) -> None:
        turn = self._turn
        del turn.state.workers[worker.birth]
        was_killed = worker.phase is Phase.FENCED and slot_is_to_blame
        if worker.leaves is not None:
            code, why = worker.leaves.end(code, why, was_killed=was_killed)
            blames_peer = blames_peer or worker.leaves.blames_peer
        elif was_killed:
            why = FENCED_WHY
        was_member = worker.birth in turn.state.members
        why = worker.why or (f"{PREEMPTED_WHY}, then {why}" if worker.preempted else why)
        if was_member and worker.rank is not None:
            turn.set(left=(*turn.state.left, Left(worker.rank, worker.birth, why)))
        if worker.phase is Phase.LEAVING:
            return
        # the worker was a member, or its program does not use Horovod's ranks
        if code == 0 and (was_member or turn.state.generation < 0):
            turn.set(finished=True)
            return
        if was_member:
            turn.begin_change()
            turn.actions.append(Close(turn.state.generation, f"rank {worker.rank} has ended: {why}"))
        reported = worker.leaves.what if worker.leaves else None
        self._record(Failure(worker.birth, worker.slot, why, turn.state.generation, blames_peer, reported), code or 1)
        if worker.fails and 0 < code < KILLED_BY_SIGNAL:
            turn.give_up(worker.fails, code, worker.birth)
        elif slot_is_to_blame:
            self._punish(worker)

    def _record(self, failure: Failure, code: int) -> None:
        """Add a failure to the history.

        A cause comes before the failures that followed, even if it is reported later.
        """
        turn = self._turn
        consequences = [
            one
            for one in turn.state.history
            if one.blames_peer and one.generation == failure.generation and not failure.blames_peer
        ]
        earlier = [one for one in turn.state.history if one not in consequences]
        first = turn.state.first_failure
        if first is None or any(one.birth == first[2] for one in consequences):
            words = f"worker {failure.birth} on {failure.slot[0]}: {failure.why}"
            turn.set(first_failure=(code, words, failure.birth))
        turn.set(history=(*earlier, failure, *consequences)[-MOST_TOLD:])

    def _punish(self, worker: Worker) -> None:
        """Let the worker's slot rest. The other slots of its host are not affected."""
        turn = self._turn
        if worker.preempted:
            turn.state.rests_until[worker.slot] = turn.now + GOING_S
            return
        lasted = worker.member_since is not None and turn.now - worker.member_since >= LASTING_S
        count = 1 if lasted else turn.state.failures.get(worker.slot, 0) + 1
        turn.state.failures[worker.slot] = count
        if turn.state.limits.cooldown is not None:
            turn.state.rests_until[worker.slot] = turn.now + rest_after(count, turn.state.limits.cooldown)
        elif count >= MOST_FAILURES:
            turn.state.rests_until[worker.slot] = math.inf
