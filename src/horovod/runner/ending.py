# SPDX-License-Identifier: Apache-2.0
"""The end of a job: its whole tree of processes goes, whether the job went well or not."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable

from horovod.runner.placement import Placer
from horovod.runner.stop_signals import StopSignals
from horovod.runner.supervision import Supervision
from horovod.runner.user_output import UserOutput


def suspend_if_asked(signals: StopSignals, placer: Placer) -> None:
    """Ctrl-Z stops the launcher alone: the workers go on, as long as there is room for what they print."""
    if signals.is_to_suspend:
        with placer.suspended():
            signals.suspend()


def heed_signal(number: int, supervision: Supervision, output: UserOutput) -> int | None:
    """What a signal to the launcher means for its workers, said to the user: the signal that all must get, or None."""
    action = supervision.on_signal(number, time.monotonic())
    name = signal.Signals(number).name
    if action == signal.SIGKILL:
        output.say(f"{name} again: killing the workers")
    elif action is not None:
        again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
        output.say(f"{name}: the workers have {supervision.grace_s:g} s to end{again}")
    return action


class Ending:
    """`selector` waits for the signals, the placer's descriptor and whatever else the job hears of."""

    def __init__(
        self, placer: Placer, selector: selectors.BaseSelector, signals: StopSignals, output: UserOutput
    ) -> None:
        self._placer = placer
        self._selector = selector
        self._signals = signals
        self._output = output

    def end_tree(self, grace_s: float) -> None:
        self._placer.end(grace_s)
        if not self.wait_until(lambda: self._placer.is_over, self._placer.end_limit_s(grace_s)):
            self._placer.kill_directly()
        if self._placer.left:
            self._output.say(f"cannot end these processes: {', '.join(map(str, self._placer.left))}")

    def wait_until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """False if the time was not enough. A signal takes the grace from what is left of the tree."""
        deadline = time.monotonic() + limit_s
        while not is_done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._selector.select(left)
            suspend_if_asked(self._signals, self._placer)
            if self._signals.take():
                self._placer.end(0.0)
            self._placer.events()
        return True
