# SPDX-License-Identifier: Apache-2.0
"""Launcher's end of one agent: its process (ssh), its messages in both directions, and its workers' output.

All of it is used only in the thread that serves the hosts (serving.py).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import IO, Any

from horovod.common.escaping import escaped
from horovod.common.readiness import is_writable
from horovod.launcher.remote import frames
from horovod.launcher.remote.frames import FrameError, FrameReader, Outgoing, pack
from horovod.launcher.remote.sessions import exit_code_of, kill_group, kill_sessions
from horovod.launcher.start.processes import Ended, Event, LeftRunning, Refused, Started

LOST_EXIT_CODE = 255  # as ssh reports it
_LAST_LINES = 8
_LAST_BYTES = 4096
_LAST_WORDS_S = 0.5


class State(Enum):
    CONNECTING = "connecting"
    GREETED = "greeted"
    READY = "ready"
    LOST = "lost"
    OVER = "over"


class WorkerPipe:
    """Pipe from which the launcher reads one worker's output. It is filled with what the agent sends."""

    def __init__(self, descriptor: int) -> None:
        self.outgoing = Outgoing(descriptor)
        self.closed_there = False
        self.watched = False

    def close(self) -> None:
        os.close(self.outgoing.descriptor)


class HostWorkers:
    """Workers of one host, by key. `on_event` receives their events."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self.pipes: dict[tuple[int, int], WorkerPipe] = {}
        self._running: dict[int, int] = {}  # key to pid
        self._starting: set[int] = set()
        self._on_event = on_event

    def add(self, key: int, pipes: Iterable[int]) -> None:
        """Record that a worker is being started, with the pipes for its output."""
        for which, descriptor in enumerate(pipes):
            self.pipes[key, which] = WorkerPipe(descriptor)
        self._starting.add(key)

    def take(self, message: list[Any]) -> bool:
        """Handle a message about a worker. Return False for any other message."""
        match message:
            case ["started", key, pid]:
                self._starting.discard(key)
                self._running[key] = pid
                self._on_event(Started(key, pid))
            case ["refused", key, number]:
                self._starting.discard(key)
                self._on_event(Refused(key, number))
            case ["ended", key, code]:
                self._running.pop(key, None)
                self._on_event(Ended(key, code))
            case ["left_running", list(found)]:
                self._on_event(LeftRunning(tuple((str(owner), str(command)) for owner, command in found)))
            case ["output", key, which, bytes(data)]:
                if (key, which) in self.pipes:
                    self.pipes[key, which].outgoing.put(data)
            case ["closed", key, which]:
                if (key, which) in self.pipes:
                    self.pipes[key, which].closed_there = True
            case _:
                return False
        return True

    def lose(self, why: str) -> None:
        """Report the end of all workers, because their host was lost."""
        for key in [*self._running, *self._starting]:
            self._on_event(Ended(key, LOST_EXIT_CODE, why))
        self._running.clear()
        self._starting.clear()
        self.end_output()

    def end_output(self) -> None:
        """Record that no more output comes."""
        for pipe in self.pipes.values():
            pipe.closed_there = True

    def close(self) -> None:
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes.clear()


class Host:
    """Connection to one agent.

    `on_event` receives events of its workers, `on_answer` all other messages of the agent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        on_event: Callable[[Event], None],
        on_answer: Callable[[Host, list[Any]], None],
    ) -> None:
        self.name = name
        self.command = list(command)
        self.state = State.CONNECTING
        self.facts: dict[str, Any] = {}
        self.problem = ""
        self.left: list[int] = []
        self.workers = HostWorkers(on_event)
        self.heard = time.monotonic()
        self._on_answer = on_answer
        self._reader = FrameReader(after_greeting=True)
        self._errors: deque[bytes] = deque(maxlen=_LAST_LINES)
        # Start the process in its own session, so that Ctrl-C reaches only the launcher, which then tells the agents
        # what to do.
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        stdin, stdout, stderr = self._files()
        self.output, self.errors = stdout.fileno(), stderr.fileno()
        os.set_blocking(self.output, False)
        os.set_blocking(self.errors, False)
        self.outgoing = Outgoing(stdin.fileno())

    @property
    def is_gone(self) -> bool:
        return self.state in (State.LOST, State.OVER)

    def tell(self, *message: Any) -> None:
        if not self.is_gone:
            self.outgoing.put(pack(*message))

    def hear(self) -> None:
        """Read and handle the agent's messages."""
        try:
            data = os.read(self.output, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose(self._why_it_ended())
            return
        self.heard = time.monotonic()
        try:
            for message in self._reader.feed(data):
                self._take(_fit_to_show(message))
        except (FrameError, ValueError, TypeError) as error:
            self.lose(escaped(f"what it says is not understood: {error}"))

    def hear_errors(self) -> bool:
        """Keep the last lines that ssh and the agent wrote to stderr. Return False at its end."""
        try:
            data = os.read(self.errors, _LAST_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._errors.extend(line for line in data.splitlines() if line.strip())
        return bool(data)

    def write(self) -> None:
        try:
            self.outgoing.write()
        except OSError:
            pass  # reading its output fails too, and that failure is reported

    def says_it_all(self) -> bool:
        """Write pending messages if there is room soon. Return False if some are left."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while self.outgoing and (left := deadline - time.monotonic()) > 0:
            is_writable(self.outgoing.descriptor, left)
            self.write()
        return not self.outgoing

    def lose(self, problem: str) -> None:
        """Mark the host and its workers as lost."""
        if self.is_gone:
            return
        self.problem = problem
        self.state = State.LOST
        if (
            self.facts and self.process.returncode is None
        ):  # without facts, end_processes needs it alive, to find its descendants
            kill_group(self.process.pid)
        self.workers.lose(f"its host was lost: {problem}")

    def close(self) -> None:
        """Close the agent's input, which makes it end its workers and then itself."""
        for file in self._files():
            with suppress(OSError):
                file.close()

    def has_ended(self, limit_s: float) -> bool:
        """Return True if the process has ended; wait for that at most `limit_s` seconds."""
        return exit_code_of(self.process.pid, limit_s) is not None

    def reap(self) -> None:
        """End the process if it still runs, wait for it, and close the workers' pipes."""
        self.process.kill()
        self.process.wait()
        self.workers.close()

    def complaints(self) -> list[str]:
        noise = self._reader.noise.splitlines() if self.state is State.LOST else []
        lines = [line.decode(errors="replace").strip() for line in (*noise[-_LAST_LINES:], *self._errors)]
        return [escaped(line) for line in lines if line]

    def _why_it_ended(self) -> str:
        code = exit_code_of(self.process.pid, _LAST_WORDS_S)  # the process has closed its output, so it is about to end
        self.hear_errors()
        if self.state is State.CONNECTING:
            return "" if code is None else f"exit code {code}"
        return "the connection to its agent was closed"

    def _files(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        return stdin, stdout, stderr

    def _take(self, message: list[Any]) -> None:
        if self.workers.take(message):
            return
        match message:
            case ["alive"]:
                return
            case ["hello", dict(facts)] if self.state is State.CONNECTING:
                self.facts = facts
                self.state = State.GREETED
            case ["ready"]:
                self.state = State.READY
            case ["failed", text]:
                self.lose(str(text))
            case ["over", left]:
                self.left = list(left)
                self.state = State.OVER
                self.workers.end_output()
        self._on_answer(self, message)


def _fit_to_show(message: Any) -> Any:
    """Return a message with the control characters in its texts escaped, because they may be shown to the user.

    Output of workers comes as bytes, which stay unchanged.
    """
    match message:
        case str():
            return escaped(message)
        case list():
            return [_fit_to_show(one) for one in message]
        case dict():
            return {_fit_to_show(key): _fit_to_show(value) for key, value in message.items()}
    return message


def end_processes(hosts: Sequence[Host], limit_s: float) -> None:
    """End the processes of closed hosts, and what they started, once they had `limit_s` seconds to end.

    If a host has never answered, all descendants of its process are killed. If its agent has answered, descendants in
    other sessions may be a guardian and its workers, which the guardian ends by itself.
    """
    deadline = time.monotonic() + limit_s
    late = [host for host in hosts if not host.has_ended(max(0.0, deadline - time.monotonic())) or not host.facts]
    unanswered = [host.process.pid for host in late if not host.facts]
    kill_sessions({host.process.pid for host in late}, unanswered)
    for host in hosts:
        host.reap()


def silence_ends(host: Host) -> float | None:
    """Return when an agent that has answered once counts as silent for too long, or None."""
    return host.heard + frames.SILENCE_LIMIT_S if host.state in (State.GREETED, State.READY) else None
