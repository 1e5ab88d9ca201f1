# SPDX-License-Identifier: Apache-2.0
"""Turn: the working copy of an elastic job's state in one decision, and the actions decided so far."""

from __future__ import annotations

import signal
from dataclasses import replace

from horovod.launcher.elastic.state import State
from horovod.launcher.elastic.vocabulary import Action, Dismiss, GiveUp, Phase, Signal, Worker

LEAVING_S = 10.0
GOING_S = 60.0  # how long the slot of a preempted worker is not used; a host that goes away is gone by then
# time for a killed worker to end on an unresponsive host or in the kernel; then the others go on without waiting
UNKILLABLE_S = 3.0


class Turn:
    """One call of `membership.decide`.

    Attributes:
        state: The state so far; its tables are copies.
        now: The time of the decision.
        actions: The actions so far.
    """

    def __init__(self, state: State, now: float) -> None:
        self.state = replace(
            state,
            workers=dict(state.workers),
            failures=dict(state.failures),
            rests_until={slot: until for slot, until in state.rests_until.items() if until > now},
        )
        self.now = now
        self.actions: list[Action] = []

    def set(self, **changes: object) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def put(self, worker: Worker) -> None:
        """Change what is known of a worker."""
        self.state.workers[worker.birth] = worker

    def follow(self, decided: tuple[State, list[Action]]) -> None:
        """Take over a decision that another function has made."""
        self.state, actions = decided
        self.actions += actions

    def begin_change(self) -> None:
        """Note that the members will change, from now on."""
        if self.state.changing_since is None:
            self.set(changing_since=self.now)

    def give_up(self, why: str, code: int = 1, worker: int | None = None) -> None:
        """End the job."""
        self.actions.append(GiveUp(why, code, worker, self.state.history))
        self.set(over=True)

    def kill(self, worker: Worker, why: str | None = None) -> None:
        """Kill a worker and wait for its end, for some seconds."""
        self.actions.append(Signal(worker.birth, signal.SIGKILL))
        why = worker.why if why is None else why
        self.put(replace(worker, phase=Phase.FENCED, until=self.now + UNKILLABLE_S, why=why))

    def dismiss(self, worker: Worker, why: str) -> None:
        """Let a worker leave the job."""
        # Answer a former member, so that it ends its work properly.
        if worker.phase is Phase.READY and worker.rank is not None:
            self.actions.append(Dismiss(worker.birth, why))
        else:
            self.actions.append(Signal(worker.birth, signal.SIGTERM))
        self.put(replace(worker, phase=Phase.LEAVING, until=self.now + LEAVING_S, why=why))
        if worker.preempted:
            self.state.rests_until[worker.slot] = self.now + GOING_S

    def names_of_starting(self) -> str:
        """Return the workers that are still being started, as the end of a message."""
        names = [
            f"worker {one.birth} on {one.slot[0]}" for one in self.state.newcomers() if one.phase is Phase.STARTING
        ]
        return f"; still being started: {', '.join(names)}" if names else ""
