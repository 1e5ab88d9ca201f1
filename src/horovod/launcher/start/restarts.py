# SPDX-License-Identifier: Apache-2.0
"""Restarts of a failed job (--max-restarts), for programs that resume from their own checkpoints.

Each run has its own processes, rendezvous and secret.
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
QUICK_S = 10.0  # a job that fails sooner counts as a quick failure, which delays the restart
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

# This function runs the job as the n-th restart. Its last argument tells whether a result is final, so that no run
# follows it.
RunOnce = Callable[[ProcessTree, int, Callable[[JobResult], bool]], JobResult]


@dataclass(frozen=True)
class Budget:
    """Number of restarts allowed and used, and of quick failures in a row."""

    most: int
    used: int = 0
    quick: int = 0

    def is_last(self, result: JobResult) -> bool:
        return result.exit_code == 0 or result.stop_signal is not None or self.used >= self.most

    def spend(self, ran_s: float) -> tuple[Budget, float]:
        """Return the budget after one more restart, and the pause before it, for a run that took `ran_s` seconds."""
        quick = self.quick + 1 if ran_s < QUICK_S else 0
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (quick - 1)) if quick else 0.0
        return replace(self, used=self.used + 1, quick=quick), pause_s


def restart_line(budget: Budget, result: JobResult, pause_s: float) -> str:
    why = result.why or result.text.partition("\n")[0]
    pause = f"; it failed soon, so {pause_s:g} s pass first" if pause_s else ""
    return f"restart {budget.used} of {budget.most}: {why}{pause}"


def run_with_restarts(most: int, run_once: RunOnce, tree: ProcessTree, output: UserOutput) -> JobResult:
    """Run the job until a result is final, and return that result. The first run uses `tree`."""
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
    """Run the job again.

    Hosts that do not answer count as a failure of this run, because they answered before and may come back.
    """
    from horovod.launcher.remote.opening import HostsError

    try:
        return run_once(tree, budget.used, budget.is_last)
    except HostsError as error:
        if budget.used >= budget.most:
            raise
        output.say(str(error))
        return JobResult(exit_code=1, why=str(error).partition("\n")[0])


def _say_and_pause(output: UserOutput, line: str, seconds: float) -> int | None:
    """Print the line, then wait. Return the number of a signal that ends the job, or None when the time is over."""
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
