# SPDX-License-Identifier: Apache-2.0
"""A tree of processes on this machine: start workers, signal them, end the tree, also when this process is killed.

`ProcessTree` is the near end; the far end, of which the workers are children, is the guardian (guardian.py).
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, Any

from horovod.launcher.start.guardian import GIVE_UP_S, Unpacker, descendants, pack

# The folder comes in the environment: `pkill -9 -f horovod` is to end launchers, and not who cleans up after them.
_FOLDER_VARIABLE = "GUARDIAN_FOLDER"
_PROGRAM = f"import os, sys; sys.path.append(os.environ[{_FOLDER_VARIABLE!r}]); import guardian; guardian.main()"
_SEND_LIMIT_S = 5


@dataclass(frozen=True)
class Started:
    key: int
    pid: int


@dataclass(frozen=True)
class Refused:
    """The worker could not be started."""

    key: int
    number: int  # errno


@dataclass(frozen=True)
class Ended:
    """`code`: 128 + n for signal n. `how` is said instead of it if it is not the worker's own."""

    key: int
    code: int
    how: str = ""


@dataclass(frozen=True)
class LeftRunning:
    """Processes that ran on when the job was over, and got SIGTERM: what started each ("rank 0"), and its command."""

    found: tuple[tuple[str, str], ...]


Event = Started | Refused | Ended | LeftRunning


class CannotRunError(RuntimeError):
    """The job cannot be run, or can be run no longer, through no fault of its program."""


class GuardianLostError(CannotRunError):
    """Somebody killed the guardian: the job cannot be watched any more, and its workers were killed."""

    def __init__(self) -> None:
        super().__init__("the process that starts and watches the workers has ended, so they were killed")


class ProcessTree:
    """Answers come as events, when the tree's descriptor is readable. Nothing here waits for a worker."""

    def __init__(self) -> None:
        self._channel, far_end = socket.socketpair()
        # A guardian that is stuck must not hold us up.
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_LIMIT_S, 0))
        with far_end:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())],
                env={**os.environ, _FOLDER_VARIABLE: os.path.dirname(__file__)},
                stdin=far_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._messages = Unpacker()
        self._running: dict[int, int] = {}  # key to pid
        self.is_over = False
        self.left: tuple[int, ...] = ()  # processes that even SIGKILL did not end

    def __enter__(self) -> ProcessTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def start(self, key: int, command: Sequence[str], env: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]:
        """Ask for a worker, the leader of a session of its own; where its stdout and stderr can be read."""
        words = [os.fsencode(word) for word in command]
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        message = pack("start", key, words, variables)
        pipes = [os.pipe() for _ in range(2)]
        try:
            with suppress(OSError):  # a lost guardian is an event like others
                sent = socket.send_fds(self._channel, [message[:4]], [write for _, write in pipes])
                self._channel.sendall(message[sent:])
        finally:
            for _, write in pipes:
                os.close(write)
        stdout, stderr = (os.fdopen(read, "rb", buffering=0) for read, _ in pipes)
        return stdout, stderr

    def signal(self, key: int, number: int) -> None:
        """Signal a worker and its process group, with SIGUSR1 and SIGUSR2 the worker alone; no effect if it ended."""
        self._send("signal", key, int(number))

    def end(self, grace_s: float, patience_s: float = 0.0) -> None:
        """End the whole tree: SIGTERM after the patience, SIGKILL a grace later. `is_over` tells when that is done.

        With patience, processes that run until SIGTERM are reported as LeftRunning.
        """
        self._send("end", float(grace_s), float(patience_s))

    @staticmethod
    def end_limit_s(grace_s: float) -> float:
        """How long that may take."""
        return grace_s + GIVE_UP_S + 1.0

    def events(self) -> list[Event]:
        """What happened since the last call. GuardianLostError if nobody tells any more."""
        try:
            data = self._channel.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data and not self.is_over:
            self.kill_directly()
            raise GuardianLostError
        events = [self._event(message) for message in self._messages.feed(data)]
        return [event for event in events if event is not None]

    @staticmethod
    def suspended() -> AbstractContextManager[None]:
        """While this process is stopped. The guardian knows the difference."""
        return nullcontext()

    def kill_directly(self) -> None:
        """For when the guardian cannot. Orphans that it had adopted are not found any more."""
        for pid in self._running.values():
            for one in (pid, *descendants(pid)):
                with suppress(OSError):
                    os.kill(one, signal.SIGKILL)
        self._running.clear()
        self.is_over = True

    def close(self) -> None:
        """Whatever still runs is ended in the background; normally nothing does."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._guardian.wait(1.0)

    def _send(self, *message: object) -> None:
        self._guardian.send_signal(signal.SIGCONT)  # somebody may have frozen it with the workers
        with suppress(OSError):  # a lost guardian is an event like others
            self._channel.sendall(pack(*message))

    def _event(self, message: tuple[Any, ...]) -> Event | None:
        match message:
            case "started", key, pid:
                self._running[key] = pid
                return Started(key, pid)
            case "refused", key, number:
                return Refused(key, number)
            case "ended", key, code:
                del self._running[key]
                return Ended(key, code)
            case "left_running", found:
                return LeftRunning(tuple((owner, command) for owner, command in found))
            case "over", left:
                self.is_over = True
                self.left = tuple(left)
        return None


def describe_exit(exit_code: int) -> str:
    if exit_code <= 128:
        return f"exit code {exit_code}"
    number = exit_code - 128
    try:
        killed = f"killed by signal {number} ({signal.Signals(number).name})"
        return f"{killed}, often out of memory" if number == signal.SIGKILL else killed
    except ValueError:
        return f"exit code {exit_code}"
