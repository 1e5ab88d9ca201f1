# SPDX-License-Identifier: Apache-2.0
"""Threads that write to readers that may be slow, stalled or gone, so that no other thread waits for a reader.

    Sink.put --> Writer's queue --> Writer's thread --> Destination (a descriptor, or a text stream of Python)

A full queue still accepts data: its producer must look at `is_full` and stop producing.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from horovod.launcher.output.in_place import InPlace, Key

# A destination writes some of the bytes and returns how many; 0 means none for now. If it raises, no more can be
# written.
Destination = Callable[[memoryview], int]

_FULL_BYTES = 1 << 20
_ROOM_BYTES = _FULL_BYTES // 2
_LOOK_S = 0.1  # interval at which a thread with a stalled reader checks whether it must stop
_PIECE = select.PIPE_BUF  # size that a pipe takes at once if it takes anything


class Sink:
    """Destination of a writer. It drops data once its reader is gone, so that `| head` does not end a job."""

    def __init__(self, writer: Writer, destination: Destination, on_error: Callable[[Exception], None] | None) -> None:
        self._writer = writer
        self.destination = destination
        self._on_error = on_error
        self._is_gone = False
        self.before_put: Callable[[], None] | None = None
        self.last_line: InPlace | None = None  # only for a terminal

    def put(self, data: bytes) -> None:
        """Write whole lines, above the progress bar if there is one."""
        if self.before_put is not None:
            self.before_put()
        if self.last_line is None:
            self.put_quietly(data)
            return
        with self.last_line.lock:
            self.put_quietly(self.last_line.above(data))

    def show_bar(self, key: Key, text: bytes | None) -> None:
        """Rewrite the progress bar in the terminal's last line; None ends it. Outside a terminal bars are not shown."""
        if self.last_line is None:
            return
        if text is not None and self.before_put is not None:
            self.before_put()
        with self.last_line.lock:
            self.last_line.set(key, text)
            if not self.is_full:
                self.put_quietly(self.last_line.draw())

    def put_quietly(self, data: bytes) -> None:
        """Write data without calling `before_put`."""
        if data and not self._is_gone:
            self._writer.put(self, data)

    @property
    def is_full(self) -> bool:
        return self._writer.is_full and not self._is_gone

    def write(self, data: memoryview) -> int:
        """Write some of the data to the destination. Only the writer's thread calls this."""
        if self._is_gone:
            return len(data)
        try:
            return self.destination(data)
        except Exception as error:  # a user's stream object may raise anything
            self._is_gone = True
            if self._on_error is not None:
                self._on_error(error)
            return len(data)


class Writer:
    """Thread with a queue. It writes to any number of destinations, in the order of the queue."""

    def __init__(self, name: str) -> None:
        self._queue: deque[tuple[Sink, bytes]] = deque()
        self._pending = 0
        self._progress_at = 0.0
        self._is_closing = False
        self._has_been_full = False
        self._changed = threading.Condition()
        self._on_room: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name=f"horovod-{name}", daemon=True)
        self._thread.start()

    def sink(self, destination: Destination, on_error: Callable[[Exception], None] | None = None) -> Sink:
        return Sink(self, destination, on_error)

    def put(self, sink: Sink, data: bytes) -> None:
        with self._changed:
            self._queue.append((sink, data))
            self._pending += len(data)
            self._has_been_full |= self.is_full
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Return the number of bytes that wait to be written."""
        return self._pending

    @property
    def is_full(self) -> bool:
        return self._pending >= _FULL_BYTES

    def tell_of_room(self, tell: Callable[[], None]) -> None:
        """Call `tell` in the writer's thread whenever a full queue has room again."""
        self._on_room.append(tell)

    def drain(self, patience_s: float, since: float) -> bool:
        """Wait until all is written.

        Return False if the reader takes nothing for `patience_s`, counted from its last read or from `since` if that is
        later.
        """
        with self._changed:
            while self._pending:
                left = max(since, self._progress_at) + patience_s - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Drop unwritten data and stop. A thread that is blocked in a write stays behind, which does no harm."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(3 * _LOOK_S)

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if self._is_closing:
                    return
                sink, data = self._queue.popleft()
            rest = memoryview(data)
            while rest and not self._is_closing:
                written = sink.write(rest)
                rest = rest[written:]
                self._advance(written)

    def _advance(self, written: int) -> None:
        if written == 0:
            return
        with self._changed:
            self._progress_at = time.monotonic()
            self._pending -= written
            has_room = self._has_been_full and self._pending <= _ROOM_BYTES
            if has_room:
                self._has_been_full = False
            self._changed.notify_all()
        if has_room:
            for tell in self._on_room:
                tell()


def to_descriptor(descriptor: int) -> Destination:
    """Return a destination that never blocks for long.

    The descriptor stays blocking, because other processes share it.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)

    def write(data: memoryview) -> int:
        if not poll.poll(1000 * _LOOK_S):
            return 0
        try:
            return os.write(descriptor, data[:_PIECE])
        except BlockingIOError:
            time.sleep(_LOOK_S / 10)  # another process made it non-blocking
            return 0

    return write


def to_text(stream: TextIO) -> Destination:
    """Return a destination for a text stream of Python, because sys.stdout of a notebook is not descriptor 1."""
    descriptor = plain_descriptor(stream)
    if descriptor is not None:
        return to_descriptor(descriptor)

    def write(data: memoryview) -> int:
        stream.write(bytes(data).decode(errors="replace"))
        stream.flush()
        return len(data)

    return write


def plain_descriptor(stream: TextIO) -> int | None:
    """Return the descriptor to which a stream directly writes, or None.

    Writing to the descriptor avoids the stream's lock: a thread blocked in it would abort Python's exit.
    """
    with suppress(AttributeError, OSError, ValueError):
        if type(stream) is io.TextIOWrapper and isinstance(getattr(stream.buffer, "raw", None), io.FileIO):
            stream.flush()
            return stream.fileno()
    return None


def is_same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
