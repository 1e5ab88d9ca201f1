# SPDX-License-Identifier: Apache-2.0
"""Protocol between a launcher and its agent over standard input and output: a length, then a msgpack array.

The first element is the verb. To the agent: job, start, signal, end, taken, listen, reach, reached_all, alive; for `hvd
doctor`: examine, clock, measure; in an elastic job whose hosts may be unable to reach each other: probe_listen, probe,
probe_end. To the launcher: hello, ready, failed, started, refused, ended, output, closed, listening, reached, over,
alive; examined, clock, measured; probe_listening, probed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]

# The greeting marks where messages begin, because a login shell may print anything before.
GREETING = b"\0khorovod agent 1\0"
MOST_NOISE = 1 << 18
LARGEST_FRAME = 1 << 24

ALIVE_EVERY_S = 2.0
SILENCE_LIMIT_S = 10.0
# Limit for the bytes of one output pipe that were sent but that the reader has not taken yet.
WINDOW = 1 << 18
CHUNK = 1 << 16


class FrameError(ValueError):
    """Error: the data is not a message of this protocol."""


def pack(*message: Any) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(4, "little") + body


class FrameReader:
    """Decoder of bytes into messages. With `after_greeting`, data before the greeting is kept for error messages."""

    def __init__(self, *, after_greeting: bool) -> None:
        self._rest = bytearray()
        self._greeted = not after_greeting
        self.noise = b""

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Yield the messages completed by this data. Raise FrameError if the data cannot become a message."""
        self._rest += data
        if not self._greeted and not self._find_greeting():
            return
        while len(self._rest) >= 4:
            end = 4 + int.from_bytes(self._rest[:4], "little")
            if end > LARGEST_FRAME:
                raise FrameError(f"a message of {end - 4} bytes exceeds the limit of {LARGEST_FRAME - 4}")
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
                raise FrameError(f"no greeting in {len(self._rest)} bytes of output")
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
    """Bytes that wait for room in a non-blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def put(self, data: bytes) -> None:
        self._bytes += data

    def write(self) -> int:
        """Write as much as there is room for, and return how much. Raise OSError if the reader is gone."""
        written = 0
        with suppress(BlockingIOError):
            while self._bytes:
                count = os.write(self.descriptor, self._bytes[: 1 << 20])
                del self._bytes[:count]
                written += count
        return written
