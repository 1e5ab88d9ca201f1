# SPDX-License-Identifier: Apache-2.0
"""`hvd test`: real ranks run every collective on every dtype, then allreduce is timed."""

from __future__ import annotations

import time

from horovod.tools import results, speed, trial
from horovod.tools.results import Check, Report


def run(ranks: int, transport: str, limit_s: float) -> Report:
    """TrialFailed if the ranks could not even run; else a report, which may hold failures."""
    import horovod

    start = time.monotonic()
    done = trial.run(_on_every_rank, ranks, transport, limit_s)
    checks = results.merge([checks for checks, _ in done.results])
    if transport == "shm" and ranks > 1 and done.transport != "shared memory":
        checks.append(Check("transport", "", results.FAIL, f"{done.transport} was used instead of shared memory"))
    return Report(
        version=horovod.__version__,
        ranks=ranks,
        transport=done.transport,
        kernels=str(done.engine.get("kernels", "unknown")),
        seconds=time.monotonic() - start,
        checks=checks,
        speeds=speed.slowest([times for _, times in done.results], speed.ALL_SIZES),
    )


def _on_every_rank() -> tuple[list[Check], list[float]]:
    from horovod.tools.collective_checks import check_all

    return check_all(), speed.measure(speed.ALL_SIZES)
