# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs under test, and what their workers report in each generation."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.awaiting import await_that

from faultkit.jobs import program
from faultkit.reports import Report
from faultkit.stepping import SteppingJob


class ElasticJob(SteppingJob):
    """Job of tests/faults/programs/elastic.py, which trains until `finish`.

    `prefix` is put before horovodrun's command.
    """

    def __init__(
        self,
        framework: str,
        folder: Path,
        size: int,
        *flags: str,
        more: Sequence[str] = (),
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.stop = folder / "stop"
        command = program("elastic", framework, str(self.stop), *more)
        super().__init__(command, size, flags, {"OMP_NUM_THREADS": "1", **(env or {})}, prefix)

    def stepped(self, generation: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """Wait until all workers of a generation have made a step. Return their reports by worker id."""
        found = super().stepped(generation, size, limit_s)
        assert {one["size"] for one in found.values()} == {size}
        assert sorted(one["rank"] for one in found.values()) == list(range(size))
        return found

    def stepped_with(self, size: int, after: Mapping[int, Report], limit_s: float = 100) -> dict[int, Report]:
        """Wait for the first generation of this size after another; several changes may lie between them."""
        return self.stepped_from(1 + max(one["generation"] for one in after.values()), size, limit_s)

    def kill(self, worker: Report, number: int = signal.SIGKILL) -> float:
        os.kill(worker["pid"], number)
        return time.monotonic()

    def await_printed(self, text: str, limit_s: float = 60) -> None:
        """Wait until the launcher or a worker has printed the text."""
        await_that(lambda: text in self.printed(), limit_s, lambda: f"printed: {text!r}\n{self.printed_by_all()}")


def of_rank(rank: int, reports: Mapping[int, Report]) -> Report:
    return next(one for one in reports.values() if one["rank"] == rank)


def pids(reports: Mapping[int, Report]) -> dict[int, int]:
    """Return the process ids by worker id."""
    return {birth: one["pid"] for birth, one in reports.items()}


class OfferedHosts:
    """Output of a host discovery script, in a file that is replaced atomically. `flags` are those of horovodrun."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self._new, self.file = folder / "new", folder / "offered"
        self.flags = ("--host-discovery-script", f"cat {self.file}")
        self(*hosts)

    def __call__(self, *hosts: str) -> None:
        self._new.write_text("\n".join(hosts))
        self._new.rename(self.file)
