# SPDX-License-Identifier: Apache-2.0
"""Jobs of real processes, started by plain variables or by horovodrun; the end of a `with` block ends them too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from faultkit.reports import VARIABLE, Report, Reports
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.runner.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.worker_environment import rendezvous_environment, slot_environment
from horovod.tools.stacks import NoAnswer, find_workers, read_stacks, title

FOLDER = Path(__file__).parent.parent
_ADDRESS = "127.0.0.1"


def program(name: str, *arguments: str) -> list[str]:
    """The command line of a worker program of this folder."""
    return [sys.executable, "-m", "faultkit.program", str(FOLDER / "programs" / f"{name}.py"), *arguments]


class Job:
    """What both kinds of jobs have: reports, and the processes that gave them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reports = Reports()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(FOLDER), str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, VARIABLE: self.reports.path, **env}

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the job
        self._logs.append(log)
        self.processes.append(
            subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        )

    def printed(self, index: int = 0) -> str:
        log = self._logs[index].fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def ready(self) -> dict[int, Report]:
        """Wait until every rank is initialised; their reports by rank."""
        try:
            return self.reports.await_event("ready", range(self.size))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def failed(self, ranks: list[int], limit_s: float) -> dict[int, Report]:
        """Wait until these ranks have reported an error."""
        try:
            return self.reports.await_event("failed", ranks, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed_by_all()}") from None

    def signal(self, rank: int, number: int) -> float:
        """Send a signal to a rank; the time at which that was done."""
        os.kill(self.reports.of("ready")[rank]["pid"], number)
        return time.monotonic()

    def wait(self, limit_s: float) -> list[int]:
        """Exit codes; AssertionError with all that was printed if a process does not end in time."""
        give_up = time.monotonic() + limit_s
        for index, process in enumerate(self.processes):
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"process {index} still runs after {limit_s} s\n{self.printed_by_all()}") from None
        return [process.returncode for process in self.processes]

    def printed_by_all(self) -> str:
        """What every process has printed, and where those that still run are."""
        shown = []
        for index, process in enumerate(self.processes):
            shown.append(f"--- process {index}:\n{self.printed(index)}")
            if process.poll() is None:
                shown.append(_stacks(process.pid))
        return "\n".join(shown)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                _kill_family(process.pid)
            process.wait()
        for log in self._logs:
            log.close()
        self.reports.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlainJob(Job):
    """Ranks started by plain variables; the rendezvous is served by the test. `wrap` may put a rank somewhere else."""

    def __init__(
        self,
        command: Sequence[str],
        hosts: str = "a:2",
        env: Mapping[str, str] | None = None,
        wrap: Callable[[SlotInfo], list[str]] = lambda slot: [],
    ) -> None:
        slots = get_host_assignments(parse_hosts(hosts), sum(int(host.rpartition(":")[2]) for host in hosts.split(",")))
        super().__init__(len(slots))
        secret = make_secret()
        self._server = Server(_ADDRESS, secret=secret).start()
        self.meeting_point = rendezvous_environment(_ADDRESS, self._server.port, secret)
        for slot in slots:
            variables = self.meeting_point | slot_environment(slot) | dict(env or {})
            self.start([*wrap(slot), *command], self.environment(variables))

    def close(self) -> None:
        super().close()
        self._server.stop()


class LaunchedJob(Job):
    """Ranks started by horovodrun. `prefix` may put the launcher itself somewhere else."""

    def __init__(
        self,
        command: Sequence[str],
        size: int = 2,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(size)
        launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(size), *flags]
        self.start([*prefix, *launcher, *command], self.environment(env or {}))


def _stacks(pid: int) -> str:
    shown = []
    try:
        for offer in find_workers([pid]):
            shown.append(title(offer.pid))
            shown.append(read_stacks(offer))
    except NoAnswer as reason:
        shown.append(str(reason))
    return "\n".join(shown)


def _kill_family(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
