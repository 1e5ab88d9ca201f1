# SPDX-License-Identifier: Apache-2.0
"""End of a job: end its whole process tree, whether the job succeeded or not."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence

from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.placement import Placer
from horovod.launcher.start.processes import LeftRunning
from horovod.launcher.start.stop_signals import StopSignals
from horovod.launcher.start.supervision import Supervision

# Helper processes such as resource trackers and compiler pools end within this time after their rank.
PATIENCE_S = 2.0
_COMMAND_CHARS = 100


def suspend_if_asked(signals: StopSignals, placer: Placer) -> None:
    """Suspend the launcher alone after Ctrl-Z. The workers go on until the buffers for their output are full."""
    if signals.is_to_suspend:
        with placer.suspended():
            signals.suspend()


def heed_signal(number: int, supervision: Supervision, output: UserOutput, *, whom: str = "the workers") -> int | None:
    """Print what a signal to the launcher means for `whom`. Return the signal to send to all of them, or None."""
    action = supervision.on_signal(number, time.monotonic())
    name = signal.Signals(number).name
    if action == signal.SIGKILL:
        output.say(f"{name} again: killing {whom}")
    elif action is not None:
        again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
        output.say(f"{name}: {whom} have {supervision.grace_s:g} s to end{again}")
    return action


class Ending:
    """End of one job. `selector` waits for the signals, the placer's descriptor and the job's other events."""

    def __init__(
        self, placer: Placer, selector: selectors.BaseSelector, signals: StopSignals, output: UserOutput
    ) -> None:
        self._placer = placer
        self._selector = selector
        self._signals = signals
        self._output = output

    def end_tree(self, grace_s: float, *, went_well: bool) -> None:
        """End the processes that workers left running.

        After a successful job, wait for them first and report the rest.
        """
        patience_s = PATIENCE_S if went_well else 0.0
        self._placer.end(grace_s, patience_s)
        if not self.wait_until(lambda: self._placer.is_over, patience_s + self._placer.end_limit_s(grace_s)):
            self._placer.kill_directly()
        if self._placer.left:
            self._output.say(f"cannot end these processes: {', '.join(map(str, self._placer.left))}")

    def wait_until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """Return True once `is_done` holds, False if the time is over.

        A signal ends the grace of the remaining processes.
        """
        deadline = time.monotonic() + limit_s
        while not is_done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._selector.select(left)
            suspend_if_asked(self._signals, self._placer)
            if self._signals.take():
                self._placer.end(0.0)
            for event in self._placer.events():
                if isinstance(event, LeftRunning):
                    self._say_left_running(event.found)
        return True

    def _say_left_running(self, found: Sequence[tuple[str, str]]) -> None:
        """Print one line for each rank, which names the first of its processes."""
        commands: dict[str, list[str]] = {}
        for owner, command in found:
            commands.setdefault(owner, []).append(command)
        for owner, (first, *others) in commands.items():
            more = f" (and {len(others)} more)" if others else ""
            self._output.say(
                f"{owner} has ended but left {first[:_COMMAND_CHARS]!r}{more} running; terminating it. "
                "Make the rank wait for the processes that it starts"
            )
