# SPDX-License-Identifier: Apache-2.0
"""Distribution of the elastic driver's messages about hosts to the listeners in a worker.

The caller passes `connect`, which starts to receive messages from the driver. Without a driver no message arrives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class HostUpdateResult:
    """Change of the set of hosts. Values may be combined with |."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    def on_hosts_updated(self, timestamp: float, update_res: int) -> None: ...


Handler = Callable[[float, int], None]


class WorkerNotificationManager:
    """Dispatcher that passes the driver's messages to all listeners, on the thread on which they arrive."""

    def __init__(self, connect: Callable[[Handler], object] | None = None) -> None:
        self._connect = connect
        self._connection: object = None
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    def init(self) -> None:
        """Start to receive messages from the driver, if there is one. A second call does nothing."""
        with self._lock:
            if self._connect is not None and self._connection is None:
                self._connection = self._connect(self.handle_hosts_updated)

    def register_listener(self, listener: Listener) -> None:
        with self._lock:
            if listener not in self._listeners:
                self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Pass one message of the driver to all listeners."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)
