# SPDX-License-Identifier: Apache-2.0
"""Hostile clients of an open port: garbage, half messages, absurd lengths, pickles, floods, and slow bytes."""

from __future__ import annotations

import pickle
import random
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_LIMIT_S = 10.0  # the kernel retries connections that find a queue full after 1 s, 3 s and 7 s


class _Bomb:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self._path), "w")


def garbage(bomb: Path) -> Iterator[bytes]:
    source = random.Random(24)
    for length in (1, 7, 32, 100, 4096, 200_000):
        yield source.randbytes(length)
    for size in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
        for layout in ("<Q", ">Q"):
            yield struct.pack(layout, size) + b"x" * 64
    for size in (-1, -(2**31)):
        yield struct.pack("<i", size) * 50
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
        yield pickle.dumps(_Bomb(bomb), protocol)


def speak(port: int, data: bytes) -> None:
    """Send data, read for a moment, and disconnect."""
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as sock, suppress(OSError):
        sock.sendall(data)
        sock.settimeout(0.02)
        while sock.recv(4096):
            pass


def echo(port: int) -> None:
    """Send the server's own greeting back to it, then half of it, and disconnect."""
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as sock, suppress(OSError):
        sock.settimeout(0.2)
        greeting = sock.recv(4096)
        sock.sendall(greeting + greeting[: len(greeting) // 2])


@contextmanager
def crowd(ports: list[int], each: int) -> Iterator[list[socket.socket]]:
    """Hold idle connections to all ports open during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        sockets = []
        for _ in range(each):
            for port in ports:
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
                sockets.append(sock)
        yield sockets


def rush(port: int, count: int) -> int:
    """Connect, send a word and disconnect, `count` times or for a minute; return how often that worked."""
    served = 0
    give_up = time.monotonic() + 60
    while served < count and time.monotonic() < give_up:
        with socket.socket() as sock, suppress(OSError):
            sock.settimeout(_LIMIT_S)
            # Otherwise the port stays in use.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"knock")
            served += 1
    return served


class Dripping:
    """Connection that sends a byte about five times a second, so that it is never idle for long."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S)
        self._began = time.monotonic()
        self.dropped_after: float | None = None
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self) -> None:
        with self._socket, suppress(ConnectionError):
            while time.monotonic() - self._began < 20:
                self._socket.sendall(b"x")
                readable, _, _ = select.select([self._socket], [], [], 0.1)
                if readable and not self._socket.recv(4096):
                    break
                time.sleep(0.1)
            else:
                return
        self.dropped_after = time.monotonic() - self._began

    def join(self) -> float | None:
        """Return the seconds until the server dropped the connection, None if it never did."""
        self._thread.join()
        return self.dropped_after
