# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose workers report the first step of each generation."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from faultkit.jobs import LaunchedJob, program
from faultkit.reports import Report


class StatefulJob(LaunchedJob):
    """`words` follow the file that ends the training, on the command line of tests/faults/programs/<name>.py."""

    def __init__(
        self, name: str, folder: Path, size: int, *words: str, env: Mapping[str, str] | None = None, least: int = 1
    ) -> None:
        self.stop = folder / "stop"
        ours = {"OMP_NUM_THREADS": "1", **(env or {})}
        super().__init__(program(name, str(self.stop), *words), size, ("--min-np", str(least)), ours)

    def stepped(self, generation: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """Once all workers of a generation have made a step: their reports by birth id."""

        def all_of_them(reports: list[Report]) -> dict[int, Report] | None:
            steps = [one for one in reports if one["event"] == "stepped" and one["generation"] == generation]
            found = {one["birth"]: one for one in steps}
            return found if len(found) == size else None

        try:
            return self.reports.await_that(all_of_them, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def stepped_from(self, least: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """The same for the first generation from this number on that has this size."""

        def of_that_size(reports: list[Report]) -> int | None:
            steps = [one for one in reports if one["event"] == "stepped" and one["generation"] >= least]
            return min((one["generation"] for one in steps if one["size"] == size), default=None)

        try:
            generation = self.reports.await_that(of_that_size, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None
        return self.stepped(generation, size, limit_s)

    def await_report(self, event: str, limit_s: float = 60, **details: object) -> Report:
        def matching(reports: list[Report]) -> Report | None:
            wanted = {"event": event, **details}
            return next((one for one in reports if wanted.items() <= one.items()), None)

        try:
            return self.reports.await_that(matching, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def kill(self, *workers: Report) -> None:
        for worker in workers:
            os.kill(worker["pid"], signal.SIGKILL)

    def finish(self, size: int) -> list[Report]:
        """Let them all end well; what they report, which is the same."""
        self.stop.touch()
        assert self.wait(limit_s=60) == [0], self.printed()

        def all_done(reports: list[Report]) -> list[Report] | None:
            found = [one for one in reports if one["event"] == "done"]
            return found if len(found) == size else None

        done = self.reports.await_that(all_done)
        assert len({(one["steps"], one["weights"]) for one in done}) == 1, done
        return done
