# SPDX-License-Identifier: Apache-2.0
"""Pool: the live ranks of one world, which run bodies in step. All waits have a limit.

If a rank fails, dies or is late, the whole pool is replaced, because the state of the other ranks is unknown.
"""

from __future__ import annotations

import inspect
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from testkit.meeting import Meeting
from testkit.places import ROOT, TESTS, python_path
from testkit.preloaded import command
from testkit.processes import Process
from testkit.speed import patience
from testkit.started import count_ranks

from harness.worker import Answer, Task
from harness.worlds import World

START_LIMIT_S = 60.0
IMPORT_LIMIT_S = 60.0  # added to the limit of a module's first body, because all ranks may import a framework at once
EXIT_LIMIT_S = 30.0
GRACE_S = 10.0  # time limit for the other ranks once one has failed
STACKS_LIMIT_S = 2.0
LOG_BYTES = 6000
_WORKER = str(TESTS / "harness" / "worker.py")


class Rank:
    """Worker process, with its connection and its output."""

    def __init__(self, rank: int, env: dict[str, str]) -> None:
        self.rank = rank
        self.connection, theirs = Pipe()
        with theirs:
            words = [*command(_WORKER), str(theirs.fileno())]
            self.process = Process(words, env, pass_fds=[theirs.fileno()])

    def ask_for_stacks(self) -> None:
        """Make faulthandler print all stacks to the log; return once they are there."""
        before = self.process.log_size()
        self.process.send_signal(signal.SIGUSR1)
        give_up = time.monotonic() + STACKS_LIMIT_S
        size = before
        while time.monotonic() < give_up:
            time.sleep(0.05)
            last, size = size, self.process.log_size()
            if last == size > before:
                return

    def printed(self) -> str:
        text = self.process.printed(LOG_BYTES)
        return f"\nprinted by rank {self.rank}:\n{text}" if text else ""

    def end(self) -> None:
        self.process.end()
        self.connection.close()


class Pool:
    """Live ranks of one world, all initialised. After a failure, the next run starts new ranks."""

    def __init__(self, world: World, env: Mapping[str, str]) -> None:
        self.world = world
        self._env = env
        self.size = world.size
        self.usable = False
        self._start()

    def _start(self) -> None:
        self.usable = True
        self._loaded: set[str] = set()  # files of the modules whose bodies have run
        self._meeting = Meeting(self.world.hosts)
        count_ranks(self.size)
        shared = {**self._env, **self.world.env, "PYTHONPATH": python_path(ROOT, TESTS)}
        self._ranks = [Rank(slot.rank, self._meeting.environment(slot) | shared) for slot in self._meeting.slots]
        self._collect("the start", START_LIMIT_S)

    def run(self, body: Callable[..., Any], limit_s: float = 30, **arguments: Any) -> list[Any]:
        """Run a function of a test module on all ranks; return its results, by rank. A failure fails the test."""
        if not self.usable:
            self._start()
        task = Task(inspect.getfile(body), body.__name__, arguments)
        if task.file not in self._loaded:
            self._loaded.add(task.file)
            limit_s += IMPORT_LIMIT_S
        try:
            for rank in self._ranks:
                rank.connection.send(task)
            return [answer.value for answer in self._collect(body.__name__, limit_s)]
        except BaseException:  # for example the test's own time limit; the ranks are out of step
            self._end()
            raise

    def close(self) -> None:
        """Make the ranks shut down, and fail the test if a rank does not exit in time with code 0."""
        troubles = []
        if self.usable:
            for rank in self._ranks:
                rank.connection.send(None)
            give_up = time.monotonic() + patience(EXIT_LIMIT_S)
            troubles = [trouble for rank in self._ranks if (trouble := self._exit(rank, give_up))]
        self._end()
        if troubles:
            pytest.fail(f"world {self.world.name} did not end well\n" + "\n".join(troubles), pytrace=False)

    def _exit(self, rank: Rank, give_up: float) -> str | None:
        try:
            code = rank.process.wait_until(give_up)
        except subprocess.TimeoutExpired:
            rank.ask_for_stacks()
            return f"rank {rank.rank} did not exit within {EXIT_LIMIT_S} s{rank.printed()}"
        return f"rank {rank.rank} exited with {code}{rank.printed()}" if code else None

    def _collect(self, what: str, limit_s: float) -> list[Answer]:
        answers: dict[int, Answer] = {}
        limit_s = patience(limit_s)
        give_up = time.monotonic() + limit_s
        waiting: dict[Connection, Rank] = {rank.connection: rank for rank in self._ranks}
        while waiting:
            ready = wait(list(waiting), max(0.0, give_up - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[index]
                answers[rank.rank] = self._receive(rank)
                if answers[rank.rank].failure:
                    give_up = min(give_up, time.monotonic() + GRACE_S)
        for rank in waiting.values():
            rank.ask_for_stacks()
            answers[rank.rank] = Answer(failure=f"no answer from rank {rank.rank}; its stacks are below")
        if any(answer.failure for answer in answers.values()):
            self._fail(what, answers, limit_s)
        return [answers[rank] for rank in range(self.size)]

    def _receive(self, rank: Rank) -> Answer:
        try:
            answer: Answer = rank.connection.recv()
        except (EOFError, ConnectionError):
            code = rank.process.wait(EXIT_LIMIT_S)
            answer = Answer(failure=f"rank {rank.rank} died with {code}")
        return answer

    def _fail(self, what: str, answers: dict[int, Answer], limit_s: float) -> None:
        parts = [f"{what} failed in world {self.world.name} (limit {limit_s:g} s)"]
        for rank in self._ranks:
            failure = answers[rank.rank].failure or "passed"
            parts.append(f"--- rank {rank.rank}\n{failure}{rank.printed()}")
        self._end()
        pytest.fail("\n".join(parts), pytrace=False)

    def _end(self) -> None:
        if self.usable:
            self.usable = False
            for rank in self._ranks:
                rank.end()
            self._meeting.close()


class Pools:
    """Owner of the only live pool: another world's pool replaces it. `env`: variables for all ranks."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._pool: Pool | None = None

    def get(self, world: World) -> Pool:
        if self._pool is None or self._pool.world.name != world.name:
            self._close()
            self._pool = Pool(world, self._env)
        return self._pool

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()
