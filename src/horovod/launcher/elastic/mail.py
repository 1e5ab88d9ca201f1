# SPDX-License-Identifier: Apache-2.0
"""Queue that brings events from other threads (rendezvous, discovery) to the loop of an elastic job."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from horovod.common.readiness import is_readable

News = TypeVar("News")


class Mail(Generic[News]):
    """Thread-safe event queue with a descriptor that is readable while events are waiting."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._events: deque[News] = deque()

    def fileno(self) -> int:
        return self._receiver.fileno()

    def put(self, event: News) -> None:
        """Add an event. Any thread may call this."""
        self._events.append(event)
        with suppress(OSError):  # buffer full: the loop is awake anyway; closed: no loop is waiting
            self._sender.send(b"\0")

    def wait(self, limit_s: float | None) -> None:
        """Wait until there is an event or the time is over."""
        is_readable(self._receiver, limit_s)

    def take(self) -> list[News]:
        with suppress(BlockingIOError):
            self._receiver.recv(4096)
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
