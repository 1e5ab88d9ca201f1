# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM, SIGHUP and SIGTSTP as events: a handler notes them, and a descriptor becomes readable."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


class StopSignals:
    """In place of the handlers that were there, while it is entered. Outside the main thread Python allows none."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
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
        """Wake whoever waits for signals, without one. From any thread."""
        with suppress(OSError):  # full: awake anyway; closed: nobody waits
            self._sender.send(b"\0")

    def take(self) -> list[int]:
        """The signals that came since the last call, but for that to suspend."""
        with suppress(BlockingIOError):
            self._receiver.recv(4096)
        came, self._came = self._came, []
        return [number for number in came if number != signal.SIGTSTP]

    @property
    def is_to_suspend(self) -> bool:
        """Whether Ctrl-Z was typed and not taken yet."""
        return signal.SIGTSTP in self._came

    def suspend(self) -> None:
        """Stop this process, as if nobody had caught the signal; return when it is continued."""
        self._came = [number for number in self._came if number != signal.SIGTSTP]
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        self.ring()
