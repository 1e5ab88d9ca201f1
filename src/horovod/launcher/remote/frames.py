# SPDX-License-Identifier: Apache-2.0
"""What a launcher and its agent say to each other over standard input and output: length, then a msgpack array.

The first element is the verb. To the agent: job, start, signal, end, taken, listen, reach, reached_all, alive; for
`hvd doctor`: examine, clock, measure; in an elastic job whose hosts may be cut off from each other: probe_listen,
probe, probe_end. To the launcher: hello, ready, failed, started, refused, ended, output, closed, listening, reached,
over, alive; examined, clock, measured; probe_listening, probed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]

# Before it the shell of a login may have written whatever it likes.
GREETING = b"\0khorovod agent 1\0"
MOST_NOISE = 1 << 18
LARGEST_FRAME = 1 << 24

ALIVE_EVERY_S = 2.0
SILENCE_LIMIT_S = 10.0
# Of one pipe of one worker: this many bytes may be on their way to a reader who has not taken them.
WINDOW = 1 << 18
CHUNK = 1 << 16


class FrameError(ValueError):
    """The other end does not speak our language."""


def pack(*message: Any) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(4, "little") + body


class FrameReader:
    """Bytes as they come to messages. `after_greeting`: whatever comes before it is noise, kept for error messages."""

    def __init__(self, *, after_greeting: bool) -> None:
        self._rest = bytearray()
        self._greeted = not after_greeting
        self.noise = b""

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """FrameError if this can no longer become a message."""
        self._rest += data
        if not self._greeted and not self._find_greeting():
            return
        while len(self._rest) >= 4:
            end = 4 + int.from_bytes(self._rest[:4], "little")
            if end > LARGEST_FRAME:
                raise FrameError(f"a message of {end - 4} bytes")
            if len(self._rest) < end:
                return
            body = bytes(self._rest[4:end])
            del self._rest[:end]
            yield _message(body)

    def _find_greeting(self) -> bool:
        at = self._rest.find(GREETING)
        self.noise = bytes(self._rest[: at if at >= 0 else len(self._rest)])
        if at < 0:
            if len(self._rest) > MOST_NOISE:
                raise FrameError(f"{len(self._rest)} bytes of other output")
            return False
        del self._rest[: at + len(GREETING)]
        self._greeted = True
        return True


def _message(body: bytes) -> list[Any]:
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(str(error)) from error
    if not (isinstance(message, list) and message and isinstance(message[0], str)):
        raise FrameError("not a message")
    return message


class Outgoing:
    """Bytes that wait for room in a descriptor that does not block."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def put(self, data: bytes) -> None:
        self._bytes += data

    def write(self) -> int:
        """As much as there is room for; how much that was. OSError if nobody reads any more."""
        written = 0
        with suppress(BlockingIOError):
            while self._bytes:
                count = os.write(self.descriptor, self._bytes[: 1 << 20])
                del self._bytes[:count]
                written += count
        return written
