# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose workers report a step of each generation, until a file tells them to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from faultkit.jobs import LaunchedJob
from faultkit.reports import Report

Found = TypeVar("Found")


class SteppingJob(LaunchedJob):
    """Base of jobs that train until the file `stop` exists; subclasses choose the program."""

    stop: Path

    def await_in_reports(self, found: Callable[[list[Report]], Found | None], limit_s: float) -> Found:
        """Return the first result of `found(all reports)` that is not None.

        Raise AssertionError, with all output, if that takes too long.
        """
        try:
            return self.reports.await_that(found, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def stepped(self, generation: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """Wait until all workers of a generation have made a step. Return their reports by worker id."""

        def all_of_them(reports: list[Report]) -> dict[int, Report] | None:
            steps = [one for one in reports if one["event"] == "stepped" and one["generation"] == generation]
            found = {one["birth"]: one for one in steps}
            return found if len(found) == size else None

        return self.await_in_reports(all_of_them, limit_s)

    def stepped_from(self, least: int, size: int, limit_s: float = 100) -> dict[int, Report]:
        """Wait as `stepped` does for the first generation of this size whose number is at least `least`."""

        def of_that_size(reports: list[Report]) -> int | None:
            steps = [one for one in reports if one["event"] == "stepped" and one["generation"] >= least]
            return min((one["generation"] for one in steps if one["size"] == size), default=None)

        return self.stepped(self.await_in_reports(of_that_size, limit_s), size, limit_s)

    def finish(self, size: int) -> list[Report]:
        """Make all workers end normally. Return their last reports, whose results must be equal."""
        self.stop.touch()
        assert self.wait(limit_s=60) == [0], self.printed()

        def all_done(reports: list[Report]) -> list[Report] | None:
            found = [one for one in reports if one["event"] == "done"]
            return found if len(found) == size else None

        done = self.reports.await_that(all_done)
        assert len({(one["steps"], one["weights"]) for one in done}) == 1, done
        return done
