# SPDX-License-Identifier: Apache-2.0
"""Who can reach whom, tried out: a listener that proves who it is, and connections to the listeners of other hosts.

An address may be that of another machine here than there (every Docker host has a 172.17.0.1), so a connection counts
only if the one who was meant answers.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

CONNECT_LIMIT_S = 2.0
_TOKEN_BYTES = 16
_MOST_THREADS = 64


@dataclass(frozen=True)
class Address:
    """An address of a host, on the interface that has it there."""

    interface: str
    text: str

    @property
    def is_loopback(self) -> bool:
        return self.text.startswith("127.") or self.text == "::1"


@dataclass(frozen=True)
class Target:
    """A listener on another host, and the addresses it may have."""

    host: str
    addresses: tuple[str, ...]
    port: int
    token: bytes


@dataclass(frozen=True)
class Attempt:
    """What came of one address. `problem` is empty if it was reached."""

    host: str
    address: str
    seconds: float
    problem: str = ""


class Listener:
    """A port on all addresses of this host, until it is closed. A thread calls `take` with each connection."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        self._take = take
        self._socket = _listen_everywhere()
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="horovod-probe", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.settimeout(CONNECT_LIMIT_S)
            self._take(connection)


class ProbeListener(Listener):
    """Answers each connection with its token."""

    def __init__(self) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        super().__init__(self._answer)

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(self.token)


def reach(targets: Sequence[Target]) -> list[Attempt]:
    """Try all addresses of all targets at once."""
    pairs = [(target, address) for target in targets for address in target.addresses]
    if not pairs:
        return []
    with ThreadPoolExecutor(min(len(pairs), _MOST_THREADS)) as pool:
        return list(pool.map(lambda pair: _try(*pair), pairs))


def own_addresses() -> list[Address]:
    """All addresses of this machine at which others might find it: IPv4 first, last those that only it can reach.

    Even these may do: hosts of a test may be names for one machine, without any network.
    """
    import psutil

    found: list[tuple[bool, bool, Address]] = []
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            address = Address(name, str(entry.address).partition("%")[0])
            if entry.family in (socket.AF_INET, socket.AF_INET6) and not address.text.startswith("fe80:"):
                found.append((address.is_loopback, entry.family == socket.AF_INET6, address))
    return [address for *_, address in sorted(found, key=lambda entry: entry[:2])]


def _listen_everywhere() -> socket.socket:
    try:
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    except (OSError, ValueError):  # no IPv6 here
        return socket.create_server(("", 0), backlog=128)


def _try(target: Target, address: str) -> Attempt:
    begin = time.monotonic()
    try:
        with socket.create_connection((address, target.port), CONNECT_LIMIT_S) as connection:
            seconds = time.monotonic() - begin
            said = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
    except OSError as error:
        return Attempt(target.host, address, time.monotonic() - begin, error.strerror or str(error))
    problem = "" if said == target.token else "another machine answers there"
    return Attempt(target.host, address, seconds, problem)
