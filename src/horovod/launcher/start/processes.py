# SPDX-License-Identifier: Apache-2.0
"""Process tree on this machine: start workers, signal them, and end the tree, even if this process is killed.

`ProcessTree` talks to the guardian (guardian.py), whose children the workers are.
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

# The folder is passed in the environment, so that `pkill -9 -f horovod` ends launchers but not their guardians.
_FOLDER_VARIABLE = "GUARDIAN_FOLDER"
_PROGRAM = f"import os, sys; sys.path.append(os.environ[{_FOLDER_VARIABLE!r}]); import guardian; guardian.main()"
_SEND_LIMIT_S = 5


@dataclass(frozen=True)
class Started:
    key: int
    pid: int


@dataclass(frozen=True)
class Refused:
    """Event: a worker could not be started."""

    key: int
    number: int  # errno


@dataclass(frozen=True)
class Ended:
    """Event: a worker has ended.

    `code` is 128 + n for signal n. `how` is shown instead of the code if the code is not the worker's own.
    """

    key: int
    code: int
    how: str = ""


@dataclass(frozen=True)
class LeftRunning:
    """Event: processes were still running at the end of the job and got SIGTERM.

    Each entry holds the worker that started the process ("rank 0") and the command.
    """

    found: tuple[tuple[str, str], ...]


Event = Started | Refused | Ended | LeftRunning


class CannotRunError(RuntimeError):
    """Error: the job cannot run, or cannot go on, for a reason outside its program."""


class GuardianLostError(CannotRunError):
    """Error: the guardian was killed, so the job cannot be watched any more and its workers were killed."""

    def __init__(self) -> None:
        super().__init__("the process that starts and watches the workers has ended, so they were killed")


class ProcessTree:
    """Tree of worker processes.

    Results come as events when its descriptor is readable; no method waits for a worker.
    """

    def __init__(self) -> None:
        self._channel, far_end = socket.socketpair()
        # A stuck guardian must not block this process for longer.
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
        self.left: tuple[int, ...] = ()  # processes that outlived even SIGKILL

    def __enter__(self) -> ProcessTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def start(self, key: int, command: Sequence[str], env: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]:
        """Ask the guardian to start a worker in a session of its own. Return the pipes of its stdout and stderr."""
        words = [os.fsencode(word) for word in command]
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        message = pack("start", key, words, variables)
        pipes = [os.pipe() for _ in range(2)]
        try:
            with suppress(OSError):  # a lost guardian is reported by events()
                sent = socket.send_fds(self._channel, [message[:4]], [write for _, write in pipes])
                self._channel.sendall(message[sent:])
        finally:
            for _, write in pipes:
                os.close(write)
        stdout, stderr = (os.fdopen(read, "rb", buffering=0) for read, _ in pipes)
        return stdout, stderr

    def signal(self, key: int, number: int) -> None:
        """Signal a worker and its process group, or the worker alone for SIGUSR1 and SIGUSR2.

        No effect if it has ended.
        """
        self._send("signal", key, int(number))

    def end(self, grace_s: float, patience_s: float = 0.0) -> None:
        """End the whole tree: SIGTERM after the patience, SIGKILL a grace later. `is_over` is True when that is done.

        With patience, processes that run until SIGTERM are reported as LeftRunning.
        """
        self._send("end", float(grace_s), float(patience_s))

    @staticmethod
    def end_limit_s(grace_s: float) -> float:
        """Return how long end() may take, in seconds."""
        return grace_s + GIVE_UP_S + 1.0

    def events(self) -> list[Event]:
        """Return the events since the last call. Raise GuardianLostError if the guardian has ended too early."""
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
        """Return a context for the time in which this process is stopped. The guardian notices that by itself."""
        return nullcontext()

    def kill_directly(self) -> None:
        """Kill the workers without the guardian. Orphans that the guardian had adopted are not found any more."""
        for pid in self._running.values():
            for one in (pid, *descendants(pid)):
                with suppress(OSError):
                    os.kill(one, signal.SIGKILL)
        self._running.clear()
        self.is_over = True

    def close(self) -> None:
        """Close the connection.

        The guardian then ends remaining processes in the background; usually there are none.
        """
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._guardian.wait(1.0)

    def _send(self, *message: object) -> None:
        self._guardian.send_signal(signal.SIGCONT)  # it may have been frozen together with the workers
        with suppress(OSError):  # a lost guardian is reported by events()
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
