# SPDX-License-Identifier: Apache-2.0
"""Decisions when a worker exits, a signal comes or time passes.

This module only decides; the loop in job.py carries the decisions out.

    running --failure--> ending --grace over--> killed
    running --signal---> ending --second signal or grace over--> killed --processes do not end--> given up

A worker that fails only because it lost a peer is not the cause, so the job waits a moment for the worker that is. A
worker that has reported an exception of its own is the cause; the job waits for its end until the grace is over.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum

GRACE_S = 5.0
CAUSE_WAIT_S = 1.0
KILL_LIMIT_S = 5.0  # a process that sleeps in the kernel may outlive SIGKILL indefinitely


class State(Enum):
    RUNNING = "running"
    WAITING_FOR_CAUSE = "waiting for cause"
    ENDING = "ending"
    KILLED = "killed"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class Exit:
    """End of a worker. `blames_peer` means that its last output reports the loss of another rank."""

    rank: int
    code: int
    blames_peer: bool = False


@dataclass
class Supervision:
    """State of a job. Each event method returns the signal that all living workers must get now, or None."""

    grace_s: float = GRACE_S
    state: State = State.RUNNING
    failure: Exit | None = None
    stop_signal: int | None = None
    deadline: float | None = None
    reported: Exit | None = None  # expected exit of the first worker that reported an exception
    _suspects: list[Exit] = field(default_factory=list)

    def on_report(self, expected: Exit, now: float) -> bool:
        """Record that a worker reports how it is about to end. Return True if this is the first failure."""
        if self.reported is not None or self.state not in (State.RUNNING, State.WAITING_FOR_CAUSE):
            return False
        self.reported = expected
        if self.state is State.WAITING_FOR_CAUSE:
            self.deadline = now + self.grace_s
        return True

    def on_exit(self, exit: Exit, now: float) -> int | None:
        is_reported = self.reported is not None and exit.rank == self.reported.rank
        if self.state not in (State.RUNNING, State.WAITING_FOR_CAUSE) or (exit.code == 0 and not is_reported):
            return None
        if is_reported:
            return self._end(exit if exit.code != 0 else self.reported or exit, now)
        self._suspects.append(exit)
        if not exit.blames_peer and self.reported is None:
            return self._end(exit, now)
        if self.state is State.RUNNING:
            self.state = State.WAITING_FOR_CAUSE
            self.deadline = now + (CAUSE_WAIT_S if self.reported is None else self.grace_s)
        return None

    def on_signal(self, number: int, now: float) -> int | None:
        if self.stop_signal is None:
            self.stop_signal = number
        if self.state in (State.RUNNING, State.WAITING_FOR_CAUSE):
            self.state = State.ENDING
            self.deadline = now + self.grace_s
            return number
        return self._kill(now)

    def on_time(self, now: float, has_unread_exits: bool = False) -> int | None:
        """Act on a deadline that has passed.

        Args:
            has_unread_exits: The last output of some ended workers is still being read. One of them may be the cause,
                so no worker is blamed yet, although the deadline has passed: the launcher itself may have been late.
        """
        if self.deadline is None or now < self.deadline:
            return None
        if self.state is State.WAITING_FOR_CAUSE:
            if has_unread_exits:
                return None
            return self._end(self.reported or self._suspects[0], now)
        if self.state is State.KILLED:
            self.state = State.GIVEN_UP
            self.deadline = None
        return self._kill(now)

    def on_all_ended(self) -> None:
        if self.failure is None and self._suspects and self.stop_signal is None:
            self.failure = self._suspects[0]

    def exit_code(self) -> int:
        if self.stop_signal is not None and self.failure is None:
            return 128 + self.stop_signal
        return self.failure.code if self.failure is not None else 0

    def _end(self, cause: Exit, now: float) -> int:
        self.failure = cause
        self.state = State.ENDING
        self.deadline = now + self.grace_s
        return signal.SIGTERM

    def _kill(self, now: float) -> int | None:
        if self.state in (State.KILLED, State.GIVEN_UP):
            return None
        self.state = State.KILLED
        self.deadline = now + KILL_LIMIT_S
        return signal.SIGKILL


def blames_peer(last_error_lines: list[str]) -> bool:
    """Return True if a worker's last output reports the loss of another rank instead of an error of its own."""
    words = [line for line in last_error_lines if line.strip() and not line.startswith((" ", "\t"))]
    return bool(words) and "HorovodInternalError" in words[-1]
