# SPDX-License-Identifier: Apache-2.0
"""Guardian: a small process between a launcher and its workers, and an ancestor of every process of the job.

It starts workers, forwards signals and reports ended workers. It ends the whole tree when asked to, or when the
launcher is gone (even by `kill -9`). As a child subreaper it adopts processes whose parent has ended, so neither setsid
nor a double fork leads out of the tree. It runs as `python -I -S` and imports no module of this package, because that
would add to the start-up time of every job.
"""

from __future__ import annotations

import marshal
import math
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from errno import ECANCELED, EINVAL

TYPE_CHECKING = False  # not typing.TYPE_CHECKING, because importing typing takes 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ORPHANED_GRACE_S = 2.0
GIVE_UP_S = 5.0  # a process that outlives SIGKILL for this time sleeps in the kernel or belongs to another user
_RESCAN_S = 0.01
_FOR_WORKERS_ALONE = (signal.SIGUSR1, signal.SIGUSR2)
_NEW_IN_WORKERS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these, but programs expect the default action


def pack(*message: Any) -> bytes:
    """Return a message as bytes.

    marshal is safe here: both ends run the same Python, and no other process has the socket.
    """
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "little") + body


class Unpacker:
    """Decoder of a byte stream into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= (end := 4 + int.from_bytes(self._rest[:4], "little")):
            message: tuple[Any, ...] = marshal.loads(self._rest[4:end])
            del self._rest[:end]
            yield message


class Guardian:
    """Guardian of one job.

    It receives the messages start, signal and end. It sends started, refused, ended, left_running and finally over.
    """

    def __init__(self, channel: socket.socket, launcher: int) -> None:
        self._channel = channel
        self._messages = Unpacker()
        self._descriptors: list[int] = []
        # pids by key; only this process reaps them, so that a pid cannot be reused while it is here
        self._workers: dict[int, int] = {}
        self._childless = True
        self._terminate_at: float | None = None  # when SIGTERM is due; None if it was not requested or was sent
        self._kill_at: float | None = None
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._wake = _wake_on_signals()
        self._poll.register(self._wake, select.POLLIN)
        self._watch(launcher)

    def run(self) -> None:
        while not self._is_over():
            self._wait()
        self._tell("over", [] if self._childless else sorted(descendants(os.getpid())))

    def _watch(self, launcher: int) -> None:
        # A child forked by the launcher may keep the channel open after the launcher has ended, so watch its pid too.
        with suppress(AttributeError, OSError):
            self._poll.register(os.pidfd_open(launcher), select.POLLIN)
        if os.getppid() != launcher:
            self._orphaned()

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll(self._time_left_ms()):
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            elif descriptor == self._channel.fileno():
                self._hear()
            else:
                self._orphaned()
                self._poll.unregister(descriptor)

    def _time_left_ms(self) -> float | None:
        if self._kill_at is None:
            return None
        until = self._kill_at if self._terminate_at is None else min(self._terminate_at, self._kill_at)
        return 1000 * max(_RESCAN_S, until - time.monotonic())

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, 8)
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptor)
        if not data:
            self._poll.unregister(self._channel)
            self._orphaned()
        for verb, *rest in self._messages.feed(data):
            if verb == "start":
                self._start(*rest)
            elif verb == "signal":
                self._signal(*rest)
            else:
                self._end(*rest)

    def _start(self, key: int, command: list[bytes], env: dict[bytes, bytes]) -> None:
        stdout, stderr = self._descriptors[:2]
        del self._descriptors[:2]
        try:
            if self._kill_at is not None:
                raise OSError(ECANCELED, "the job is being ended")
            self._workers[key] = os.posix_spawnp(
                command[0],
                command,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, stdout, 1),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                ],
                setsid=True,
                setsigdef=_NEW_IN_WORKERS,
            )
        except (OSError, ValueError) as error:
            self._tell("refused", key, getattr(error, "errno", EINVAL))
        else:
            self._tell("started", key, self._workers[key])
        finally:
            os.close(stdout)
            os.close(stderr)

    def _signal(self, key: int, number: int) -> None:
        """Signal a worker and its process group, as a terminal does.

        SIGUSR1 and SIGUSR2 go to the worker alone, because they end processes that have no handler for them.
        """
        if key in self._workers:
            with suppress(OSError):
                (os.kill if number in _FOR_WORKERS_ALONE else os.killpg)(self._workers[key], number)

    def _end(self, grace_s: float, patience_s: float = 0.0) -> None:
        """End the tree: SIGTERM after the patience, SIGKILL a grace later. A later call can only shorten this.

        Patience applies after a successful job: processes that end within it are ignored, and the others are reported.
        """
        now = time.monotonic()
        if self._kill_at is None and grace_s > 0:
            self._terminate_at = now + patience_s
            if patience_s == 0:
                self._terminate()
        self._kill_at = min(now + patience_s + grace_s, math.inf if self._kill_at is None else self._kill_at)

    def _terminate(self) -> None:
        self._terminate_at = None
        _signal_all(descendants(os.getpid()), signal.SIGTERM)

    def _report_left_running(self) -> None:
        found = (_owner_and_command(pid) for pid in sorted(descendants(os.getpid())))
        self._tell("left_running", [row for row in found if row is not None])

    def _orphaned(self) -> None:
        self._end(ORPHANED_GRACE_S)

    def _is_over(self) -> bool:
        """Return True if the tree was to end and has ended.

        A process forked during this check is found by the next one.
        """
        self._reap()
        if self._kill_at is None or self._childless:
            return self._kill_at is not None
        if self._terminate_at is not None and time.monotonic() >= self._terminate_at:
            self._report_left_running()
            self._terminate()
        overdue = time.monotonic() - self._kill_at
        if overdue >= 0:
            _signal_all(descendants(os.getpid()), signal.SIGKILL)
        return overdue > GIVE_UP_S

    def _reap(self) -> None:
        keys = {pid: key for key, pid in self._workers.items()}
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in keys:
                    code = os.waitstatus_to_exitcode(status)
                    del self._workers[keys[pid]]
                    self._tell("ended", keys[pid], code if code >= 0 else 128 - code)
            self._childless = False
        except ChildProcessError:
            self._childless = True  # no children means no descendants, because orphans would have been adopted

    def _tell(self, *message: Any) -> None:
        with suppress(OSError):  # fails if the launcher is gone
            self._channel.sendall(pack(*message))


def descendants(*ancestors: int) -> set[int]:
    """Return the living processes below these processes, as far as /proc shows them now."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in relations() if ancestors else ():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    frontier = list(ancestors)
    while frontier:
        for child in children.get(frontier.pop(), []):
            if child not in found:
                found.add(child)
                frontier.append(child)
    return found


def relations() -> Iterator[tuple[int, int, int]]:
    """Yield pid, parent and session of every living process."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                # The command name in parentheses may contain any character, so the fields begin after the last
                # parenthesis.
                state, parent, _, session = stat.read().rpartition(b")")[2].split()[:4]
                if state not in (b"Z", b"X"):
                    yield int(name), int(parent), int(session)


def _owner_and_command(pid: int) -> tuple[str, str] | None:
    """Return the worker that started a process ("rank 0") and the process's command, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    for name, what in ((b"HOROVOD_BIRTH_ID", "worker"), (b"HOROVOD_RANK", "rank")):
        if name in variables:
            return f"{what} {variables[name].decode(errors='replace')}", command
    return "a worker", command


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _wake_on_signals() -> int:
    """Return a descriptor that becomes readable when a child ends.

    Signals that would end a process, such as SIGTERM, only wake the guardian.
    """
    receiver, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_FOR_WORKERS_ALONE):
        # Workers would inherit SIG_IGN, so use handlers. Signals ignored already (nohup) stay ignored in the workers.
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
            signal.signal(number, lambda *_: None)
    return receiver


def _adopt_orphans() -> None:
    import ctypes  # imported last, because a Python without ctypes still has all other modules

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def main() -> None:
    with suppress(ImportError, OSError, AttributeError):  # without it, orphans escape, but everything else works
        _adopt_orphans()
    Guardian(socket.socket(fileno=0), int(sys.argv[1])).run()
    os._exit(0)  # skip Python's cleanup, because the launcher waits for this process
