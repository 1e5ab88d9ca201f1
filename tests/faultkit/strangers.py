# SPDX-License-Identifier: Apache-2.0
"""What strangers do to an open port: garbage, half messages, absurd lengths, pickles, crowds, and bytes that drip."""

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

_LIMIT_S = 10.0  # connections that find a queue full are tried again after 1 s, 3 s and 7 s


class _Bomb:
    """Whoever unpickles it creates a file."""

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
    """Say it, listen for a moment, and go without a farewell."""
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as sock, suppress(OSError):
        sock.sendall(data)
        sock.settimeout(0.02)
        while sock.recv(4096):
            pass


def echo(port: int) -> None:
    """Send the other side's own greeting back to it, then half of it and away."""
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as sock, suppress(OSError):
        sock.settimeout(0.2)
        greeting = sock.recv(4096)
        sock.sendall(greeting + greeting[: len(greeting) // 2])


@contextmanager
def crowd(ports: list[int], each: int) -> Iterator[list[socket.socket]]:
    """Idle connections to all ports, held open meanwhile."""
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
    """Connect, say a word and go, `count` times or for a minute; how often that worked."""
    served = 0
    give_up = time.monotonic() + 60
    while served < count and time.monotonic() < give_up:
        with socket.socket() as sock, suppress(OSError):
            sock.settimeout(_LIMIT_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # else the port stays taken
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"knock")
            served += 1
    return served


class Dripping:
    """A connection that sends one byte ten times a second, so that it is never quite silent."""

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
        """Seconds until it was dropped, None if it never was."""
        self._thread.join()
        return self.dropped_after
