# SPDX-License-Identifier: Apache-2.0
"""Jobs of real processes, started with environment variables or by horovodrun; a `with` block ends them at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from testkit.launcher import HOROVODRUN
from testkit.meeting import Meeting
from testkit.places import ROOT, TESTS, python_path
from testkit.preloaded import command as fork_command
from testkit.processes import Process, accounts, wait_for_all
from testkit.started import count_ranks

from faultkit.reports import VARIABLE, Report, Reports
from horovod.launcher.start.hosts import SlotInfo


def program(name: str, *arguments: str) -> list[str]:
    """Return the command line of a worker program of tests/faults."""
    return [sys.executable, "-m", "faultkit.program", str(TESTS / "faults" / "programs" / f"{name}.py"), *arguments]


def forked(name: str, *arguments: str) -> list[str]:
    """Return the same, but the program is forked by a server if its variables are set (see testkit/preloaded)."""
    words = program(name, *arguments)
    return [*fork_command(str(TESTS / "faultkit" / "program.py")), *words[words.index("faultkit.program") + 1 :]]


class Job:
    """Base of both kinds of jobs: their reports, and the processes that sent them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reports = Reports()
        self.processes: list[Process] = []

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        ours = {"PYTHONPATH": python_path(ROOT, TESTS), VARIABLE: self.reports.path}
        self.processes.append(Process(command, {**ours, **env}))

    def printed(self, index: int = 0) -> str:
        return self.processes[index].printed()

    def ready(self, limit_s: float = 40) -> dict[int, Report]:
        """Wait until every rank is initialised; return their reports by rank."""
        try:
            return self.reports.await_event("ready", range(self.size), limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def failed(self, ranks: list[int], limit_s: float) -> dict[int, Report]:
        """Wait until these ranks have reported an error; return the reports."""
        try:
            return self.reports.await_event("failed", ranks, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def signal(self, rank: int, number: int) -> float:
        """Send a signal to a rank; return the time at which it was sent."""
        os.kill(self.reports.of("ready")[rank]["pid"], number)
        return time.monotonic()

    def wait(self, limit_s: float) -> list[int]:
        """Return the exit codes; raise AssertionError with all output if a process does not end in time."""
        return wait_for_all(self.processes, limit_s)

    def printed_by_all(self) -> str:
        """Return the output of every process, and the stacks of those that still run."""
        return accounts(self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.end()
        self.reports.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlainJob(Job):
    """Ranks started with environment variables; the test serves the rendezvous.

    `wrap` adds a prefix to a rank's command.
    """

    def __init__(
        self,
        command: Sequence[str],
        hosts: str = "a:2",
        env: Mapping[str, str] | None = None,
        wrap: Callable[[SlotInfo], list[str]] = lambda slot: [],
    ) -> None:
        self._meeting = Meeting(hosts)
        self.meeting_point = self._meeting.place
        super().__init__(len(self._meeting.slots))
        count_ranks(self.size)
        for slot in self._meeting.slots:
            self.start([*wrap(slot), *command], self._meeting.environment(slot) | dict(env or {}))

    def close(self) -> None:
        super().close()
        self._meeting.close()


class LaunchedJob(Job):
    """Ranks started by horovodrun. `prefix` is put before horovodrun's command."""

    def __init__(
        self,
        command: Sequence[str],
        size: int = 2,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(size)
        count_ranks(size)
        self.start([*prefix, *HOROVODRUN, "-np", str(size), *flags, *command], env or {})
