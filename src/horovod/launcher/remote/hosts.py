# SPDX-License-Identifier: Apache-2.0
"""Agents of a job, served by one thread. They offer a Job the interface of a ProcessTree.

Only `wait` and `close` wait for hosts: messages are written when there is room, and results come as events.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any

from horovod.launcher.remote.advice import require_program
from horovod.launcher.remote.environment import that_travel
from horovod.launcher.remote.host import Host, State, end_processes
from horovod.launcher.remote.serving import HostsThread
from horovod.launcher.start.processes import Event

_ROUND_TRIP_S = 2.0
_CLOSE_LIMIT_S = 2.0


class RemoteHosts:
    """Agents on other hosts. `commands` starts the agent of each host."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._thread = HostsThread(self)
        self._events: deque[Event] = deque()
        self._bell_receiver, self._bell_sender = socket.socketpair()
        self._bell_receiver.setblocking(False)
        self._changed = threading.Condition()
        self.answers: dict[tuple[str, str], list[Any]] = {}  # last answer by host and verb
        self._base_env: dict[str, dict[str, str]] = {}
        self._host_of: dict[int, Host] = {}
        self._is_closed = False
        # This dict is replaced when hosts come or go, but never modified, because several threads read it.
        self.hosts: dict[str, Host] = {}
        self._former: list[Host] = []  # released hosts that are not closed yet
        self._coming_and_going = threading.Lock()
        try:
            for name, command in commands.items():
                self.open(name, command)
        except BaseException:
            for host in self.hosts.values():
                host.close()
            end_processes(list(self.hosts.values()), 0.0)
            raise
        self._thread.start()

    # Any thread may open and release hosts by these methods.

    def open(self, name: str, command: Sequence[str]) -> None:
        """Start an agent. Raise OSError if this machine lacks the program for that."""
        require_program(command)
        with self._coming_and_going:
            if self._is_closed:
                raise OSError("the job is over")
            host = Host(name, command, self._report, self._note_answer)
            self.hosts = {**self.hosts, name: host}
        self._thread.post(partial(self._thread.listen_to, host))

    def let_go(self, name: str) -> None:
        """End the agent if it still answers, and forget the host. Another agent may be started there."""
        with self._coming_and_going:
            host = self.hosts.get(name)
            if host is None:
                return
            self._former = [*self._former, host]
            self.hosts = {other: one for other, one in self.hosts.items() if one is not host}
        self._thread.post(partial(self._thread.let_go, host))
        self.note_change()

    # Before the job

    def wait(self, is_done: Callable[[Host], bool], limit_s: float) -> None:
        """Wait until `is_done` holds for every host that is not gone, or the time is over."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not all(host.is_gone or is_done(host) for host in self.hosts.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def tell(self, name: str, *message: Any) -> None:
        """Send a message to an agent, unless the host was released."""
        if (host := self.hosts.get(name)) is not None:
            self._thread.post(partial(host.tell, *message))

    def begin(self, name: str, env: Mapping[str, str], folder: str) -> None:
        """Send an agent the environment and the working directory of its host's workers."""
        self._base_env[name] = dict(env)
        self.tell(name, "job", dict(env), folder)

    # Interface of a ProcessTree

    def fileno(self) -> int:
        return self._bell_receiver.fileno()

    def start(self, name: str, key: int, command: Sequence[str], env: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]:
        host, base = self.hosts[name], self._base_env[name]
        own = {variable: value for variable, value in that_travel(env).items() if base.get(variable) != value}
        pipes = [os.pipe() for _ in range(2)]
        self._host_of[key] = host
        self._thread.post(partial(self._start, host, key, list(command), own, [write for _, write in pipes]))
        stdout, stderr = (os.fdopen(read, "rb", buffering=0) for read, _ in pipes)
        return stdout, stderr

    def signal(self, key: int, number: int) -> None:
        self._thread.post(partial(self._host_of[key].tell, "signal", key, int(number)))

    def end(self, grace_s: float, patience_s: float = 0.0) -> None:
        for name in self.hosts:
            self.tell(name, "end", float(grace_s), float(patience_s))

    def events(self) -> list[Event]:
        with suppress(BlockingIOError):
            self._bell_receiver.recv(4096)
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    @property
    def is_over(self) -> bool:
        return all(host.is_gone for host in self.every_host())

    @property
    def left(self) -> list[str]:
        return [f"{pid} on {host.name}" for host in self.every_host() for pid in host.left]

    def every_host(self) -> list[Host]:
        return [*self._former, *self.hosts.values()]

    def former_hosts(self) -> list[Host]:
        return self._former

    def forget(self, host: Host) -> None:
        with self._coming_and_going:
            self._former = [other for other in self._former if other is not host]

    @staticmethod
    def end_limit_s() -> float:
        """Return how many seconds longer the end may take than on this machine."""
        return _ROUND_TRIP_S

    def give_up(self) -> None:
        """Mark all hosts as lost. An agent that receives nothing more ends by itself."""
        for host in self.every_host():
            self._thread.post(partial(host.lose, "it does not answer"))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Keep the agents alive while this process is suspended or about to be, and sends nothing itself."""
        resting, go_on = threading.Event(), threading.Event()
        self._thread.post(partial(self._thread.rest, resting, go_on))
        resting.wait(_ROUND_TRIP_S)
        try:
            yield
        finally:
            go_on.set()

    def close(self) -> None:
        """Close the connections. Agents that still run end their workers and then themselves."""
        with self._coming_and_going:
            self._is_closed = True
        self._thread.stop(_CLOSE_LIMIT_S)
        hosts = self.every_host()
        for host in hosts:
            host.close()
        end_processes(hosts, _CLOSE_LIMIT_S)
        self._bell_receiver.close()
        self._bell_sender.close()
        self._thread.close()

    # The thread that serves the hosts runs the methods below.

    def _start(self, host: Host, key: int, command: list[str], env: dict[str, str], pipes: Iterable[int]) -> None:
        host.workers.add(key, pipes)
        if host.is_gone:
            problem, host.state = host.problem, State.READY
            host.lose(problem)  # mark it lost again, so that the end of this worker is reported too
        host.tell("start", key, command, env)

    def _report(self, event: Event) -> None:
        self._events.append(event)
        with suppress(OSError):
            self._bell_sender.send(b"\0", socket.MSG_DONTWAIT)

    def _note_answer(self, host: Host, message: list[Any]) -> None:
        self.answers[host.name, message[0]] = message[1:]
        self.note_change()

    def note_change(self) -> None:
        with self._changed:
            self._changed.notify_all()
        with suppress(OSError):  # wake a thread that waits for the end of all hosts
            self._bell_sender.send(b"\0", socket.MSG_DONTWAIT)
