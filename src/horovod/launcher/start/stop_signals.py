# SPDX-License-Identifier: Apache-2.0
"""Signals to the launcher as events: a handler records them and makes a descriptor readable.

SIGINT, SIGTERM and SIGHUP end the job, SIGTSTP suspends the launcher, and SIGUSR1 and SIGUSR2 go to the workers.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


def dropping() -> AbstractContextManager[None]:
    """Ignore SIGUSR1 and SIGUSR2 if this process has no handler for them, because they would end it."""
    return _handling(_drop)


def forwarding(forward: Callable[[int], object]) -> AbstractContextManager[None]:
    """Call `forward` with each SIGUSR1 and SIGUSR2 for which this process has no handler."""
    return _handling(lambda number, _: forward(number))


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, handler) for number in FORWARDED if _is_free(number)}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


def _drop(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal. SIG_IGN would be inherited by the workers."""


def _is_free(number: int) -> bool:
    """Return True if the program has no handler of its own for this signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, _drop)


class StopSignals:
    """Context that replaces the signal handlers. It replaces none outside the main thread, where Python forbids it."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._to_forward: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored signals stay ignored, as under nohup
                    self._previous[number] = signal.signal(number, self._note)
            for number in FORWARDED:
                if _is_free(number):  # a program that calls horovod.run keeps its own handler
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._receiver.close()
        self._sender.close()

    def fileno(self) -> int:
        return self._receiver.fileno()

    def ring(self) -> None:
        """Wake the thread that waits for signals, although none came. Any thread may call this."""
        with suppress(OSError):  # buffer full: the thread is awake anyway; closed: no thread is waiting
            self._sender.send(b"\0")

    def take(self) -> list[int]:
        """Return the signals to end the job that came since the last call."""
        with suppress(BlockingIOError):
            self._receiver.recv(4096)
        came, self._came = self._came, []
        return [number for number in came if number != signal.SIGTSTP]

    def take_forwarded(self) -> list[int]:
        """Return the signals for the workers that came since the last call."""
        came, self._to_forward = self._to_forward, []
        return came

    @property
    def is_to_suspend(self) -> bool:
        """Return True if Ctrl-Z was typed and not handled yet."""
        return signal.SIGTSTP in self._came

    def suspend(self) -> None:
        """Stop this process as SIGTSTP does by default. Return when it is continued."""
        self._came = [number for number in self._came if number != signal.SIGTSTP]
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        (self._to_forward if number in FORWARDED else self._came).append(number)
        self.ring()
