# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs under test: what their workers report, generation by generation."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.awaiting import await_that

from faultkit.jobs import LaunchedJob, program
from faultkit.reports import Report


class ElasticJob(LaunchedJob):
    """tests/faults/programs/elastic.py, which trains until `finish`. `prefix` may put the launcher somewhere else."""

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
        self._stop = folder / "stop"
        command = program("elastic", framework, str(self._stop), *more)
        super().__init__(command, size, flags, {"OMP_NUM_THREADS": "1", **(env or {})}, prefix)

    def stepped(self, generation: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """Once all workers of a generation have made a step: their reports by birth id."""

        def all_of_them(reports: list[Report]) -> dict[int, Report] | None:
            found = {
                one["birth"]: one for one in reports if one["event"] == "stepped" and one["generation"] == generation
            }
            return found if len(found) == size else None

        try:
            found = self.reports.await_that(all_of_them, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None
        assert {one["size"] for one in found.values()} == {size}
        assert sorted(one["rank"] for one in found.values()) == list(range(size))
        return found

    def stepped_with(self, size: int, after: Mapping[int, Report], limit_s: float = 100) -> dict[int, Report]:
        """The same for the first generation of this size after another: several changes may lie between them."""
        last = max(one["generation"] for one in after.values())

        def of_that_size(reports: list[Report]) -> int | None:
            later = [one for one in reports if one["event"] == "stepped" and one["generation"] > last]
            return min((one["generation"] for one in later if one["size"] == size), default=None)

        try:
            generation = self.reports.await_that(of_that_size, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None
        return self.stepped(generation, size, limit_s)

    def kill(self, worker: Report, number: int = signal.SIGKILL) -> float:
        os.kill(worker["pid"], number)
        return time.monotonic()

    def await_printed(self, text: str, limit_s: float = 60) -> None:
        """Until the launcher or a worker has said so."""
        await_that(lambda: text in self.printed(), limit_s, lambda: f"printed: {text!r}\n{self.printed_by_all()}")

    def finish(self, size: int) -> list[Report]:
        """Let them all end well; what they report."""
        self._stop.touch()
        assert self.wait(limit_s=50) == [0], self.printed()

        def all_done(reports: list[Report]) -> list[Report] | None:
            found = [one for one in reports if one["event"] == "done"]
            return found if len(found) == size else None

        done = self.reports.await_that(all_done)
        assert len({(one["steps"], one["weights"]) for one in done}) == 1, done
        return done


def of_rank(rank: int, reports: Mapping[int, Report]) -> Report:
    return next(one for one in reports.values() if one["rank"] == rank)
