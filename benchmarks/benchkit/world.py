# SPDX-License-Identifier: Apache-2.0
"""World: the processes of one library, which the benchmark starts, controls and ends.

All waits have a time limit, and no process outlives the benchmark. Module benchkit.libraries launches the ranks.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from testkit.places import BENCHMARKS, python_path
from testkit.processes import Group

from benchkit.gate import Gate
from benchkit.problem import Problem

_START_TIMEOUT_S = 90.0
_ORDER_TIMEOUT_S = 180.0
IDLE_LIMIT = 0.05


class WorldError(Exception):
    """Error of a world that did not start, died, stopped answering or computed a wrong result; it is unusable."""


class UnsupportedError(Exception):
    """Error of an order that the library does not support; the world can still be used."""


class Hosts(Protocol):
    """Hosts with equally many consecutive ranks."""

    interface: str  # the name of every host's network interface
    neighbours: int  # ranks on each host

    def name(self, rank: int) -> str:
        """Return the name of the rank's host."""

    def address(self, rank: int) -> str: ...

    def inside(self, rank: int) -> list[str]:
        """Return the prefix that makes a command run on the rank's host."""


class World:
    """Processes of one library, one for each rank. Subclasses launch them."""

    worker = "benchkit.worker"  # the module that each rank runs

    def __init__(self, name: str, ranks: int, cores: Sequence[int | str], transport: str) -> None:
        self.name = name
        self.ranks = ranks
        self.cores = cores  # cores of each rank; empty for no pinning
        self.transport = transport
        self.library = ""
        self.idle_share = 0.0  # share of a core that an idle rank uses; see check_idle
        self.hosts: Hosts | None = None  # hosts of the ranks, if not all on this host
        self.hellos: list[dict[str, Any]] = []
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
        self._processes: list[Group] = []
        self._lines: list[_Line] = []

    def unavailable(self) -> str | None:
        """Return why this world cannot exist here, or None."""
        return None

    def launch(self, worker_arguments: list[str]) -> None:
        """Start the ranks, each as `python -m` the worker with these arguments."""
        raise NotImplementedError

    def start(self) -> None:
        gate = self.folder / "gate"
        gate.write_bytes(bytes(Gate.bytes_for(self.ranks)))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / "control"))
            listener.listen(self.ranks)
            pins = ["--cores", ",".join(map(str, self.cores))] if self.cores else []
            self.launch(
                ["--ranks", str(self.ranks), "--socket", str(self.folder / "control"), "--gate", str(gate), *pins]
            )
            self._accept_all(listener)
        self.library = str(self.hellos[0]["library"])

    def try_start(self) -> str | None:
        """Start the world and measure `idle_share`; return None, or why the world cannot be measured here."""
        reason = self.unavailable()
        if reason is None:
            try:
                self.start()
                self.check_idle()
            except WorldError as error:
                reason = str(error)
        return reason

    def prepare(self, name: str, problem: Problem, door: str) -> None:
        """Prepare an operation under this name on every rank, which keeps it until `forget`."""
        self._order({"do": "prepare", "name": name, "door": door, "problem": problem.to_json()})

    def measure(self, name: str, **how: Any) -> list[float]:
        """Return the seconds of each run on the slowest rank."""
        answers = self._order({"do": "measure", "name": name} | how)
        return [max(times) * 1e-9 for times in zip(*(answer["times"] for answer in answers), strict=True)]

    def ask(self, do: str, **how: Any) -> list[dict[str, Any]]:
        """Send an order that a special worker supports; return the answers by rank."""
        return self._order({"do": do} | how)

    def forget(self) -> None:
        self._order({"do": "forget"})

    def idle(self, seconds: float) -> list[dict[str, Any]]:
        return self._order({"do": "idle", "seconds": seconds})

    def check_idle(self) -> bool:
        """Return True if idle ranks leave the cores free; otherwise they would disturb measurements of other worlds."""
        seconds = 0.3
        self.idle_share = max(float(answer["cpu_s"]) for answer in self.idle(seconds)) / seconds
        return self.idle_share < IDLE_LIMIT

    def stop(self) -> None:
        """Close the connections, so that ranks end; then kill those that still run. Safe to call twice."""
        for line in self._lines:
            line.close()
        self._lines.clear()
        deadline = time.monotonic() + 5
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        for process in self._processes:
            process.end()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(self) -> str:
        """Return the address at which the other ranks connect to rank 0."""
        return self.hosts.address(0) if self.hosts else "127.0.0.1"

    def interface(self) -> str:
        return self.hosts.interface if self.hosts else "lo"

    def spawn_rank(self, rank: int, backend: str, worker_arguments: list[str], extra: dict[str, str]) -> None:
        """Start one rank with this Python interpreter, on its host."""
        command = [sys.executable, "-m", self.worker, backend, *worker_arguments]
        inside = self.hosts.inside(rank) if self.hosts else []
        self.spawn([*inside, *command], extra | {"BENCH_RANK": str(rank)})

    def spawn(self, command: list[str], extra: dict[str, str]) -> None:
        path = python_path(BENCHMARKS, before=extra.get("PYTHONPATH") or None)
        self._processes.append(Group(command, {"OMP_NUM_THREADS": "1"} | extra | {"PYTHONPATH": path}))

    def _accept_all(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        listener.settimeout(0.2)
        lines: list[_Line] = []
        while len(lines) < self.ranks:
            try:
                lines.append(_Line(listener.accept()[0]))
            except TimeoutError:
                self._check_alive()
                if time.monotonic() > deadline:
                    raise self._failure(f"did not start in {_START_TIMEOUT_S:.0f} s") from None
        self._lines = lines
        hellos = [self._answer(line, deadline) for line in lines]
        order = sorted(range(self.ranks), key=lambda index: int(hellos[index]["rank"]))
        self._lines, self.hellos = [lines[index] for index in order], [hellos[index] for index in order]

    def _order(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        if not self._lines:
            raise WorldError(f"{self.name} has been stopped")
        deadline = time.monotonic() + _ORDER_TIMEOUT_S
        try:
            for line in self._lines:
                line.send(order)
        except OSError as error:
            raise self._failure(f"a rank is gone: {error}") from None
        answers = [self._answer(line, deadline) for line in self._lines]
        for answer in answers:
            if "error" in answer:
                raise WorldError(f"{self.name}: {order['do']} failed\n{answer['error']}")
        for answer in answers:
            if "unsupported" in answer:
                raise UnsupportedError(answer["unsupported"])
        return answers

    def _answer(self, line: _Line, deadline: float) -> dict[str, Any]:
        while True:
            try:
                return line.receive(0.5)
            except TimeoutError:
                self._check_alive()
                if time.monotonic() > deadline:
                    raise self._failure("a rank gave no answer in time") from None
            except OSError as error:
                raise self._failure(f"a rank is gone: {error}") from None

    def _check_alive(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise self._failure(f"a process ended with exit status {process.returncode}")

    def _failure(self, what: str) -> WorldError:
        logs = [line for process in self._processes for line in process.printed().strip().splitlines()[-15:]]
        return WorldError("\n  ".join([f"{self.name}: {what}", *logs]))


class _Line:
    """JSON lines over one socket, received with a time limit."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        self._control.settimeout(10)
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any]:
        self._control.settimeout(timeout_s)
        while b"\n" not in self._received:
            data = self._control.recv(1 << 20)
            if not data:
                raise ConnectionResetError("connection closed")
            self._received += data
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._control.close()
