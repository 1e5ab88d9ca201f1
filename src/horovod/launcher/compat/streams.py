# SPDX-License-Identifier: Apache-2.0
"""Pipe for text or bytes between threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class Pipe:
    """Pipe from one thread to another. A writer waits while `length` characters or bytes or more are unread."""

    def __init__(self, length: int | None = None) -> None:
        self._length = length
        self._parts: deque[str | bytes] = deque()  # no part is empty
        self._unread = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def write(self, buf: str | bytes) -> None:
        """Append text or bytes. Raise OSError once the pipe is closed, also in a waiting writer."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room() or self._is_closed)
            if self._is_closed:
                raise OSError("the pipe is closed")
            if buf:
                self._parts.append(buf if isinstance(buf, str) else bytes(buf))
                self._unread += len(buf)
                self._changed.notify_all()

    def read(self, length: int = -1, timeout: float | None = None) -> str | bytes | None:
        """Return up to `length` characters or bytes as soon as there are any, or None at the end.

        Text and bytes are never joined.

        Raises:
            TimeoutError: No data came within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._unread > 0 or self._is_closed, timeout):
                raise TimeoutError(f"nothing was written for {timeout} s")
            if not self._parts:
                return None
            taken = self._take(self._unread if length < 0 else length)
            self._unread -= len(taken)
            self._changed.notify_all()
            return taken

    def flush(self) -> None:
        """Do nothing, because written data can be read at once."""

    def close(self) -> None:
        """Wake a waiting reader and writer. Data written before can still be read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._length is None or self._unread < self._length

    def _take(self, length: int) -> str | bytes:
        """Remove and return the first data: text up to the next bytes, or bytes up to the next text."""
        first = self._parts[0]
        taken: list[Any] = []
        while self._parts and length > 0 and isinstance(self._parts[0], str) == isinstance(first, str):
            part = self._parts.popleft()
            if len(part) > length:
                self._parts.appendleft(part[length:])
                part = part[:length]
            taken.append(part)
            length -= len(part)
        joined: str | bytes = ("" if isinstance(first, str) else b"").join(taken)
        return joined
