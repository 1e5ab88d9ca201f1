# SPDX-License-Identifier: Apache-2.0
"""Ranks of one way to run a training step: processes that run steps on request and report how long each took."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from testkit.places import BENCHMARKS, python_path
from testkit.processes import Group
from testkit.variables import free_port, of_ranks

LIMIT_S = 300.0


class Team:
    """Processes that run `command` for this interpreter, one for each rank, with --ranks, --rank and --port added."""

    def __init__(
        self, way: str, ranks: int, command: Sequence[str], cores: list[int], environment: Mapping[str, str]
    ) -> None:
        self.way = way
        self.times: list[float] = []
        port = str(free_port())
        shared = {"PYTHONPATH": python_path(BENCHMARKS), **environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.processes = []
        for rank, own in enumerate(of_ranks(ranks)):
            pin = ["taskset", "-c", str(cores[rank])] if cores else []
            numbers = ["--ranks", str(ranks), "--rank", str(rank), "--port", port]
            self.processes.append(Group([*pin, sys.executable, *command, *numbers], own | shared, **pipes))
        self.losses = [reply["loss"] for reply in self._replies()]

    def run(self, steps: int) -> None:
        """Run this many steps on all ranks; record for each step the time of the slowest rank."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"run {steps}\n".encode())
            process.stdin.flush()
        everyone = [reply["times"] for reply in self._replies()]
        self.times += [max(times) for times in zip(*everyone, strict=True)]

    def _replies(self) -> list[Any]:
        return [json.loads(self._line(process)) for process in self.processes]

    def _line(self, process: Group) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(LIMIT_S) else b""
        if not line:
            logs = "\n".join(rank.printed(3000) for rank in self.processes)
            raise RuntimeError(f"{self.way}: a rank fell silent\n{logs}")
        return line

    def stop(self) -> None:
        for process in self.processes:
            process.end()
