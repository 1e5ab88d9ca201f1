# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of forked workers under a driver in the test process, much faster than jobs of horovodrun.

Driver, rendezvous and workers are the real ones; only the launcher's loop, which starts Python for each worker, is
replaced.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from testkit.families import kill_family
from testkit.places import ROOT, TESTS, python_path
from testkit.processes import Process
from testkit.speed import patience

from faultkit.reports import VARIABLE, Report, Reports
from horovod.common.joining.elastic_place import worker_variables
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.launcher.elastic.driving import Driver, Outcome
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.progress import told_by
from horovod.launcher.elastic.vocabulary import (
    Discovered,
    Ended,
    Event,
    Limits,
    Listens,
    Ready,
    Slot,
    Tick,
    reported_by,
)
from horovod.launcher.start.processes import describe_exit
from horovod.launcher.start.worker_environment import rendezvous_environment

_ADDRESS = "127.0.0.1"
_GRACE_S = 10.0  # time for members to report how the job has ended for them


class Zygote:
    """Process from which workers of a program in tests/faults/programs are forked."""

    def __init__(self, name: str) -> None:
        program = str(TESTS / "faults" / "programs" / f"{name}.py")
        command = [sys.executable, "-m", "faultkit.zygote", program]
        env = {"PYTHONPATH": python_path(ROOT, TESTS), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = Process(command, env, **pipes)
        self._on_end: dict[str, Callable[[int], None]] = {}
        self._thread = threading.Thread(target=self._read, name="zygote", daemon=True)
        self._thread.start()

    def start(
        self, worker: str, arguments: Sequence[str], env: Mapping[str, str], on_end: Callable[[int], None]
    ) -> None:
        self._on_end[worker] = on_end
        self._order({"worker": worker, "arguments": list(arguments), "env": dict(env)})

    def signal(self, worker: str, number: int) -> None:
        if worker in self._on_end:
            self._order({"worker": worker, "signal": number})

    def printed(self) -> str:
        return self._process.printed()

    def close(self) -> None:
        kill_family(self._process.pid)
        self._thread.join()  # the thread reads until the pipe is closed by kill_family
        self._process.end()

    def _order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._on_end.pop(answer["worker"])(answer["code"])


class ForkedJob:
    """Elastic job on this machine. It starts workers for the driver (as its WorkerPlacer) through a zygote.

    Attributes:
        said: Messages of the driver.
        exit_codes: Codes of the workers that have ended, by worker id; 128 + N if signal N has killed one.
    """

    _count = 0

    def __init__(self, zygote: Zygote, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        ForkedJob._count += 1
        self._name = str(ForkedJob._count)
        self._zygote = zygote
        self._arguments = list(arguments)
        self._env = dict(env or {})
        self._mail: Mail[Event] = Mail()
        self._running: set[int] = set()
        self.started = 0
        self.exit_codes: dict[int, int] = {}
        self.said: list[str] = []
        self.reports: list[Report] = []

    def run(self, hosts: Mapping[str, int], limit_s: float = 60) -> Outcome:
        """Run the job until all its workers have ended. Raise AssertionError if that takes too long."""
        size = sum(hosts.values())
        limits = Limits(size, 1, size)
        secret = make_secret()
        with (
            closing(self._mail),
            closing(Reports()) as reports,
            Server(
                _ADDRESS,
                secret=secret,
                on_ready=lambda *told: self._mail.put(Ready(*told)),
                on_progress=lambda birth, message: self._mail.put(told_by(birth, message)),
                on_listening=lambda birth: self._mail.put(Listens(birth)),
                on_report=lambda birth, message: self._mail.put(reported_by(birth, message)),
            ) as server,
        ):
            self._env |= rendezvous_environment(_ADDRESS, server.port, secret) | {VARIABLE: reports.path}
            driver = Driver(limits, server, self, self.said.append, verbose=True)
            driver.tell(Discovered(dict(hosts)))
            limit_s = patience(limit_s)
            give_up = time.monotonic() + limit_s
            try:
                self._loop(driver, reports, lambda: not driver.is_over, give_up)
            finally:
                driver.stop()
                # Only members, because other workers would wait indefinitely for a rank.
                members = set(driver.state.members)
                # Workers that still train are killed below; those that end may first report why.
                with suppress(AssertionError):
                    self._loop(driver, reports, lambda: bool(self._running & members), time.monotonic() + _GRACE_S)
                for birth in list(self._running):
                    self.signal(birth, 9)
                self._loop(driver, reports, lambda: bool(self._running), time.monotonic() + limit_s)
            _read_all(reports)
            self.reports = reports.all
            return driver.outcome

    def _loop(self, driver: Driver, reports: Reports, goes_on: Callable[[], bool], give_up: float) -> None:
        while goes_on():
            assert time.monotonic() < give_up, "\n".join(["the job does not end", *self.said, self._zygote.printed()])
            self._mail.wait(min(1.0, left) if (left := driver.time_left()) is not None else 1.0)
            for event in self._mail.take():
                if isinstance(event, Ended):
                    self._running.discard(event.birth)
                    self.exit_codes[event.birth] = event.code
                driver.tell(event)
            driver.tell(Tick())
            _read_all(reports)  # a worker blocks while the socket is full, which holds about ten reports

    # Methods of the WorkerPlacer

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        self._running.add(birth)
        self.started += 1
        env = {**self._env, **worker_variables(birth, slot[0], planned)}
        ended: Callable[[int], None] = lambda code: self._mail.put(Ended(birth, code, describe_exit(code)))  # noqa: E731
        self._zygote.start(f"{self._name}-{birth}", self._arguments, env, ended)

    def signal(self, birth: int, number: int) -> None:
        self._zygote.signal(f"{self._name}-{birth}", number)


def _read_all(reports: Reports) -> None:
    while reports.next(0) is not None:
        pass
