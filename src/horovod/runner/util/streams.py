# SPDX-License-Identifier: Apache-2.0
"""Text from one thread to another, under its old import path."""

from __future__ import annotations

import threading


class Pipe:
    """What one thread writes, another reads. A writer waits while more than `length` characters are unread."""

    def __init__(self, length: int | None = None) -> None:
        self._length = length
        self._text = ""
        self._is_closed = False
        self._changed = threading.Condition()

    def write(self, buf: str) -> None:
        """OSError once the pipe is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room() or self._is_closed)
            if self._is_closed:
                raise OSError("the pipe is closed")
            self._text += buf
            self._changed.notify_all()

    def read(self, length: int = -1, timeout: float | None = None) -> str | None:
        """At most `length` characters as soon as there are any; None at the end, TimeoutError after the timeout."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._text) or self._is_closed, timeout):
                raise TimeoutError(f"nothing was written for {timeout} s")
            if not self._text:
                return None
            end = len(self._text) if length < 0 else length
            taken, self._text = self._text[:end], self._text[end:]
            self._changed.notify_all()
            return taken

    def flush(self) -> None:
        """Nothing to do: text can be read at once."""

    def close(self) -> None:
        """What was written can still be read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._length is None or len(self._text) < self._length
