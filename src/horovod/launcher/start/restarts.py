# SPDX-License-Identifier: Apache-2.0
"""Jobs that are started anew after a failure (--max-restarts): for programs that go on from checkpoints of their own.

Every run is a job for itself, with its own processes, rendezvous and secret.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from horovod.common.readiness import is_readable
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.processes import ProcessTree
from horovod.launcher.start.stop_signals import StopSignals

RESTART_COUNT_VARIABLE = "HOROVOD_RESTART_COUNT"
QUICK_S = 10.0  # a job that fails sooner has hardly begun
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

# In these processes, as the n-th restart; the last argument tells of a result whether no other run follows it.
RunOnce = Callable[[ProcessTree, int, Callable[[JobResult], bool]], JobResult]


@dataclass(frozen=True)
class Budget:
    """How many restarts there may be, were, and how many failures in a row came at once. Pure."""

    most: int
    used: int = 0
    quick: int = 0

    def is_last(self, result: JobResult) -> bool:
        return result.exit_code == 0 or result.stop_signal is not None or self.used >= self.most

    def spend(self, ran_s: float) -> tuple[Budget, float]:
        """For a restart after a run of so many seconds, and the pause before it."""
        quick = self.quick + 1 if ran_s < QUICK_S else 0
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (quick - 1)) if quick else 0.0
        return replace(self, used=self.used + 1, quick=quick), pause_s


def restart_line(budget: Budget, result: JobResult, pause_s: float) -> str:
    why = result.why or result.text.partition("\n")[0]
    pause = f"; it failed soon, so {pause_s:g} s pass first" if pause_s else ""
    return f"restart {budget.used} of {budget.most}: {why}{pause}"


def run_with_restarts(most: int, run_once: RunOnce, tree: ProcessTree, output: UserOutput) -> JobResult:
    """The result of the last run. `tree` is for the first one."""
    budget = Budget(most)
    began = time.monotonic()
    result = run_once(tree, 0, budget.is_last)
    while not budget.is_last(result):
        budget, pause_s = budget.spend(time.monotonic() - began)
        number = _say_and_pause(output, restart_line(budget, result, pause_s), pause_s)
        if number is not None:
            output.say(f"{signal.Signals(number).name}: the job is not restarted")
            return JobResult(exit_code=128 + number, stop_signal=number)
        began = time.monotonic()
        with ProcessTree() as another:
            result = _again(budget, run_once, another, output)
    return result


def _again(budget: Budget, run_once: RunOnce, tree: ProcessTree, output: UserOutput) -> JobResult:
    """Hosts that do not answer were there before, and may come back."""
    from horovod.launcher.remote.opening import HostsError

    try:
        return run_once(tree, budget.used, budget.is_last)
    except HostsError as error:
        if budget.used >= budget.most:
            raise
        output.say(str(error))
        return JobResult(exit_code=1, why=str(error).partition("\n")[0])


def _say_and_pause(output: UserOutput, line: str, seconds: float) -> int | None:
    """Wait, unless a signal to stop comes, be it in answer to the line; its number."""
    deadline = time.monotonic() + seconds
    with StopSignals() as signals:
        output.say(line)
        while True:
            if signals.is_to_suspend:
                signals.suspend()
            if came := signals.take():
                return came[0]
            if (left := deadline - time.monotonic()) <= 0:
                return None
            is_readable(signals, left)
