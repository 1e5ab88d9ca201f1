# SPDX-License-Identifier: Apache-2.0
"""`hvd test`: real ranks, here or on other hosts, run every collective on every dtype, then time allreduce."""

from __future__ import annotations

import socket
import time
from collections import Counter
from dataclasses import dataclass

from horovod.launcher.options import JobOptions
from horovod.tools import results, speed, trial
from horovod.tools.results import Check, Report

_RANKS = 2


@dataclass(frozen=True)
class _Answer:
    """Results of one rank. `neighbours` is the number of other ranks on its host."""

    checks: list[Check]
    times: list[float]
    host: str
    neighbours: int


def run(ranks: int | None, transport: str, limit_s: float, options: JobOptions | None = None) -> Report:
    """Run every check on the hosts that `options` name, or here. Return a report, which may contain failures.

    Without `ranks`, use all slots of the hosts.

    Raises:
        TrialFailed: The ranks could not run.
    """
    import horovod
    from horovod.launcher.start.hosts import named_slots

    start = time.monotonic()
    options = options or JobOptions()
    count = ranks or named_slots(options.hosts, options.hostfile) or _RANKS
    done = trial.run(_on_every_rank, count, transport, limit_s, options)
    answers: list[_Answer] = done.results
    checks = results.merge([answer.checks for answer in answers])
    if transport == "shm" and done.engine["peers_by_shared_memory"] != answers[0].neighbours:
        checks.append(Check("transport", "", results.FAIL, f"{done.transport} was used instead of shared memory"))
    return Report(
        version=horovod.__version__,
        ranks=count,
        transport=done.transport,
        kernels=str(done.engine.get("kernels", "unknown")),
        seconds=time.monotonic() - start,
        checks=checks,
        speeds=speed.slowest([answer.times for answer in answers], speed.ALL_SIZES),
        hosts=dict(Counter(answer.host for answer in answers)),
    )


def _on_every_rank() -> _Answer:
    import horovod.numpy as hvd
    from horovod.tools.collective_checks import check_all

    return _Answer(check_all(), speed.measure(speed.ALL_SIZES), socket.gethostname(), hvd.local_size() - 1)
