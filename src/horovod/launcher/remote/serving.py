# SPDX-License-Identifier: Apache-2.0
"""Thread that serves the connections to all agents of a job: it reads, writes, and detects silent agents."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from horovod.launcher.remote import lease
from horovod.launcher.remote.frames import ALIVE_EVERY_S
from horovod.launcher.remote.host import Host, State, end_processes, silence_ends


class Hosts(Protocol):
    """Hosts that a HostsThread serves."""

    def every_host(self) -> list[Host]:
        """Return all hosts that are not closed, including released ones."""

    def former_hosts(self) -> list[Host]:
        """Return the released hosts that are not closed yet."""

    def forget(self, host: Host) -> None:
        """Drop a released host that is closed."""

    def note_change(self) -> None:
        """Wake the threads that wait for an answer or for the end of a host."""


class HostsThread:
    """Thread that runs posted commands and serves the agents. It never waits for a single host."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], object]] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._run_posted)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="horovod-agents", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """Ask the thread to end, and wait for that at most `limit_s` seconds."""
        self.post(self._mark_stopping)
        self._thread.join(limit_s)

    def close(self) -> None:
        """Close the thread's descriptors. Call `stop` and close the hosts before."""
        self._wake_receiver.close()
        self._wake_sender.close()
        self._selector.close()

    def post(self, command: Callable[[], object]) -> None:
        """Let the thread call `command`. Any thread may call this."""
        self._posted.append(command)
        with suppress(OSError):
            self._wake_sender.send(b"\0", socket.MSG_DONTWAIT)

    def listen_to(self, host: Host) -> None:
        """Start reading what the agent sends. This method runs in the thread: post it."""
        self._selector.register(host.output, selectors.EVENT_READ, partial(self._hear, host))
        self._selector.register(host.errors, selectors.EVENT_READ, partial(self._hear_errors, host))

    def let_go(self, host: Host) -> None:
        """End the agent, or the attempt to start it.

        This method runs in the thread: post it.
        """
        if host.state is State.CONNECTING:
            host.lose("it was let go")
        host.tell("end", 0.0)

    def rest(self, resting: threading.Event, go_on: threading.Event) -> None:
        """Let another process keep the agents alive until `go_on` is set.

        Set `resting` once the other process does that. This method runs in the thread: post it.
        """
        places = [
            host.outgoing.descriptor for host in self._hosts.every_host() if not host.is_gone and host.says_it_all()
        ]
        with lease.kept(places):
            resting.set()
            go_on.wait()
        for host in self._hosts.every_host():
            host.heard = time.monotonic()  # nothing was read meanwhile, so the agents are not silent

    def _run_posted(self) -> None:
        with suppress(BlockingIOError):
            self._wake_receiver.recv(4096)
        while self._posted:
            self._posted.popleft()()

    def _mark_stopping(self) -> None:
        self._is_stopping = True

    def _serve(self) -> None:
        said = time.monotonic()
        while not self._is_stopping:
            for key, _ in self._selector.select(self._time_left(said)):
                key.data()
            now = time.monotonic()
            if now >= said + ALIVE_EVERY_S:
                said = now
                for host in self._hosts.every_host():
                    host.tell("alive")
            for host in self._hosts.every_host():
                deadline = silence_ends(host)
                if deadline is not None and now >= deadline:
                    host.lose(f"nothing was heard of it for {now - host.heard:.0f} s")
                    self._ignore(host.output)
                    self._ignore(host.errors)
                    self._hosts.note_change()
                self._look_after(host)
            self._forget_former()

    def _time_left(self, said: float) -> float:
        """Return the seconds until a sign of life is due or a host has been silent for too long."""
        limits = [deadline for host in self._hosts.every_host() if (deadline := silence_ends(host)) is not None]
        return max(0.0, min([said + ALIVE_EVERY_S, *limits]) - time.monotonic())

    def _look_after(self, host: Host) -> None:
        """Write what can be written, and watch descriptors that have no room."""
        host.write()
        self._watch_room(host.outgoing.descriptor, bool(host.outgoing) and not host.is_gone)
        for place, pipe in list(host.workers.pipes.items()):
            taken, broken = 0, False
            try:
                taken = pipe.outgoing.write()
            except OSError:
                broken = True  # the launcher does not read it any more
            if taken:
                host.tell("taken", *place, taken)
                host.write()
            self._watch_room(pipe.outgoing.descriptor, bool(pipe.outgoing) and not broken)
            if broken or (pipe.closed_there and not pipe.outgoing):
                del host.workers.pipes[place]
                pipe.close()

    def _watch_room(self, descriptor: int, wanted: bool) -> None:
        watched = descriptor in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(descriptor, selectors.EVENT_WRITE, lambda: None)
        elif watched and not wanted:
            self._selector.unregister(descriptor)

    def _hear(self, host: Host) -> None:
        host.hear()
        if host.is_gone:
            self._ignore(host.output)
            self._ignore(host.errors)
            self._hosts.note_change()

    def _hear_errors(self, host: Host) -> None:
        if not host.hear_errors():
            self._ignore(host.errors)

    def _ignore(self, descriptor: int) -> None:
        with suppress(KeyError):  # fails if it is ignored already
            self._selector.unregister(descriptor)

    def _forget_former(self) -> None:
        """Close released hosts that have ended and whose workers' output was read completely."""
        for host in [host for host in self._hosts.former_hosts() if host.is_gone and not host.workers.pipes]:
            self._ignore(host.output)
            self._ignore(host.errors)
            self._watch_room(host.outgoing.descriptor, False)
            host.close()
            end_processes([host], 0.0)
            self._hosts.forget(host)
