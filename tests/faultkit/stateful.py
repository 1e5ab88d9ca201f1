# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose workers report the first step of each generation."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from faultkit.jobs import forked
from faultkit.reports import Report
from faultkit.stepping import SteppingJob


class StatefulJob(SteppingJob):
    """Job of tests/faults/programs/<name>.py; `words` follow the stop file on its command line."""

    def __init__(
        self, name: str, folder: Path, size: int, *words: str, env: Mapping[str, str] | None = None, least: int = 1
    ) -> None:
        self.stop = folder / "stop"
        ours = {"OMP_NUM_THREADS": "1", **(env or {})}
        super().__init__(forked(name, str(self.stop), *words), size, ("--min-np", str(least)), ours)

    def await_report(self, event: str, limit_s: float = 60, **details: object) -> Report:
        def matching(reports: list[Report]) -> Report | None:
            wanted = {"event": event, **details}
            return next((one for one in reports if wanted.items() <= one.items()), None)

        return self.await_in_reports(matching, limit_s)

    def kill(self, *workers: Report) -> None:
        for worker in workers:
            os.kill(worker["pid"], signal.SIGKILL)
