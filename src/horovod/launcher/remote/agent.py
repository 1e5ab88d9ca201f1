# SPDX-License-Identifier: Apache-2.0
"""Agent of the launcher on another host: `ssh host python -m horovod.runner.agent`.

It starts workers, forwards signals, sends their output back and reports ended workers. All instructions come through
standard input. It opens a port only while hosts test or measure their connections. When the input ends, or no message
came for ten seconds, it ends the workers, so that a host that the launcher cannot reach becomes free.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from horovod.launcher.remote import frames
from horovod.launcher.remote.frames import CHUNK, WINDOW, FrameReader, Outgoing, pack
from horovod.launcher.remote.inquiries import Inquiries, about_this_host
from horovod.launcher.start.guardian import ORPHANED_GRACE_S
from horovod.launcher.start.processes import Ended, Event, GuardianLostError, LeftRunning, ProcessTree, Refused, Started
from horovod.launcher.start.stop_signals import dropping


class _Pipe:
    """One output pipe of one worker. It is read while the launcher takes its output."""

    def __init__(self, key: int, which: int, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.key = key
        self.which = which
        self.pipe = pipe
        self.room = WINDOW
        self.watched = False


class Agent:
    """Agent for one job's workers on this host."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        os.set_blocking(incoming, False)
        self._incoming = incoming
        self._outgoing = Outgoing(outgoing)
        self._reader = FrameReader(after_greeting=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(incoming, selectors.EVENT_READ, self._hear)
        self._writes = False
        self._tree: ProcessTree | None = None
        self._env: dict[str, str] = {}
        self._pipes: dict[tuple[int, int], _Pipe] = {}
        self._inquiries = Inquiries(self._tell)
        self._selector.register(self._inquiries.bell, selectors.EVENT_READ, self._send_answers)
        self._verbs: dict[str, Callable[..., None]] = {
            "alive": lambda: None,
            "job": self._on_job,
            "start": self._on_start,
            "signal": self._on_signal,
            "end": self._on_end,
            "taken": self._on_taken,
            **self._inquiries.verbs(),
        }
        self._heard = self._told = time.monotonic()
        self._orphaned = False

    def run(self) -> int:
        self._outgoing.put(frames.GREETING)
        self._tell("hello", about_this_host())
        while not self._is_over():
            self._flush()
            for key, _ in self._selector.select(self._time_left()):
                key.data()
            self._watch_time()
        self._flush()
        return 0

    # Time and the connection

    def _is_over(self) -> bool:
        if self._tree is None:
            return self._orphaned
        return self._tree.is_over and (self._orphaned or not self._outgoing)

    def _time_left(self) -> float:
        now = time.monotonic()
        return max(0.0, min(self._told + frames.ALIVE_EVERY_S, self._heard + frames.SILENCE_LIMIT_S) - now)

    def _watch_time(self) -> None:
        now = time.monotonic()
        if now >= self._told + frames.ALIVE_EVERY_S:
            self._tell("alive")
        if now >= self._heard + frames.SILENCE_LIMIT_S:
            self._heard = now
            self._become_orphan()

    def _become_orphan(self) -> None:
        """End the workers, and drop messages to the launcher, which is gone."""
        self._orphaned = True
        with suppress(KeyError, ValueError):
            self._selector.unregister(self._incoming)
        if self._tree is not None:
            self._tree.end(ORPHANED_GRACE_S)

    def _hear(self) -> None:
        try:
            data = os.read(self._incoming, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._become_orphan()
            return
        self._heard = time.monotonic()
        try:
            for verb, *rest in self._reader.feed(data):
                serve = self._verbs.get(verb)
                if serve is None:
                    raise ValueError(f"this version has no command {verb!r}")
                serve(*rest)
        except (ValueError, TypeError, AttributeError) as error:
            print(f"horovod agent: malformed message: {error}", file=sys.stderr)
            self._become_orphan()

    def _tell(self, *message: Any) -> None:
        self._told = time.monotonic()
        self._outgoing.put(pack(*message))

    def _send_answers(self) -> None:
        for message in self._inquiries.take():
            self._outgoing.put(message)

    def _flush(self) -> None:
        try:
            self._outgoing.write()
        except OSError:
            if not self._orphaned:
                self._become_orphan()
        wants = bool(self._outgoing) and not self._orphaned
        if wants != self._writes:
            self._writes = wants
            if wants:
                self._selector.register(self._outgoing.descriptor, selectors.EVENT_WRITE, lambda: None)
            else:
                self._selector.unregister(self._outgoing.descriptor)

    # Requests of the launcher

    def _on_job(self, env: dict[str, str], folder: str) -> None:
        self._env = {**{name: value for name, value in os.environ.items() if name not in env}, **env}
        try:
            os.chdir(folder)
        except OSError as error:
            self._tell("failed", f"cannot work in {folder}: {error.strerror}")
            return
        os.environ["PATH"] = self._env.get("PATH", os.defpath)  # the guardian finds the workers' command by this PATH
        self._tree = ProcessTree()
        self._selector.register(self._tree, selectors.EVENT_READ, self._on_tree)
        self._tell("ready")

    def _on_start(self, key: int, command: list[str], env: dict[str, str]) -> None:
        assert self._tree is not None
        outputs = self._tree.start(key, command, {**self._env, **env})
        for which, pipe in enumerate(outputs):
            self._watch(_Pipe(key, which, pipe))

    def _on_signal(self, key: int, number: int) -> None:
        if self._tree is not None:
            self._tree.signal(key, number)

    def _on_end(self, grace_s: float, patience_s: float = 0.0) -> None:
        if self._tree is not None:
            self._tree.end(grace_s, patience_s)
        else:
            self._become_orphan()

    def _on_taken(self, key: int, which: int, count: int) -> None:
        pipe = self._pipes.get((key, which))
        if pipe is not None:
            pipe.room += count
            self._watch(pipe)

    # Events of the workers

    def _on_tree(self) -> None:
        assert self._tree is not None
        try:
            events = self._tree.events()
        except GuardianLostError as error:
            self._tell("failed", str(error))
            events = []
        for event in events:
            self._tell_event(event)
        if self._tree.is_over:
            self._selector.unregister(self._tree)
            for pipe in list(self._pipes.values()):
                self._read(pipe)
            self._tell("over", list(self._tree.left))

    def _tell_event(self, event: Event) -> None:
        match event:
            case Started(key, pid):
                self._tell("started", key, pid)
            case Refused(key, number):
                self._tell("refused", key, number)
            case Ended(key, code):
                self._tell("ended", key, code)
            case LeftRunning(found):
                self._tell("left_running", [list(row) for row in found])

    def _watch(self, pipe: _Pipe) -> None:
        self._pipes[pipe.key, pipe.which] = pipe
        wants = pipe.room > 0
        if wants and not pipe.watched:
            self._selector.register(pipe.pipe, selectors.EVENT_READ, lambda: self._read(pipe))
        elif pipe.watched and not wants:
            self._selector.unregister(pipe.pipe)
        pipe.watched = wants

    def _read(self, pipe: _Pipe) -> None:
        try:
            data = os.read(pipe.pipe.fileno(), CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and not self._orphaned:
            pipe.room -= len(data)
            self._tell("output", pipe.key, pipe.which, data)
            self._watch(pipe)
        elif not data:
            if pipe.watched:
                self._selector.unregister(pipe.pipe)
            pipe.pipe.close()
            del self._pipes[pipe.key, pipe.which]
            self._tell("closed", pipe.key, pipe.which)


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        facts = about_this_host()
        print(f"{facts['hostname']}: khorovod {facts['version']}, Python {facts['python']}, {facts['cores']} cores")
        return 0
    # Redirect stdin and stdout, so that output of libraries does not get between the messages.
    incoming, outgoing = os.dup(0), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(2, 1)
    os.close(quiet)
    with dropping():  # Slurm sends them to all processes of a step; those for the workers come as messages
        return Agent(incoming, outgoing).run()


if __name__ == "__main__":
    sys.exit(main())
