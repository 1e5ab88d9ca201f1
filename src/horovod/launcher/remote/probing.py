# SPDX-License-Identifier: Apache-2.0
"""Test of which hosts reach each other: a listener that proves its identity, and connections to other listeners.

One address may belong to different machines on different hosts (every Docker host has a 172.17.0.1), so a connection
counts only if the intended host answers.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

CONNECT_LIMIT_S = 2.0
_TOKEN_BYTES = 16
_MAX_AT_ONCE = 512  # connections; a process may have only 1,024 descriptors


@dataclass(frozen=True)
class Address:
    """Address of a host, and the interface that has it."""

    interface: str
    text: str

    @property
    def is_loopback(self) -> bool:
        return self.text.startswith("127.") or self.text == "::1"


@dataclass(frozen=True)
class Target:
    """Listener on another host, and the addresses it may have."""

    host: str
    addresses: tuple[str, ...]
    port: int
    token: bytes


@dataclass(frozen=True)
class Attempt:
    """Result for one address. `problem` is empty if the address was reached."""

    host: str
    address: str
    seconds: float
    problem: str = ""


class Listener:
    """Open port on all addresses of this host. A thread calls `take` with each connection."""

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
    """Listener that answers each connection with its token."""

    def __init__(self) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        super().__init__(self._answer)

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(self.token)


def reach(targets: Sequence[Target], limit_s: float = CONNECT_LIMIT_S) -> list[Attempt]:
    """Try all addresses of all targets at once, each for `limit_s` seconds. Beyond _MAX_AT_ONCE, some start later."""
    probes = [_Probe(target, address) for target in targets for address in target.addresses]
    waiting, open_probes = deque(probes), set[_Probe]()
    with selectors.DefaultSelector() as selector:
        while waiting or open_probes:
            while waiting and len(open_probes) < _MAX_AT_ONCE:
                probe = waiting.popleft()
                probe.begin(selector, limit_s)
                open_probes.add(probe)
            now = time.monotonic()
            for probe in [probe for probe in open_probes if probe.attempt is None and probe.deadline <= now]:
                probe.end("timed out")
            open_probes = {probe for probe in open_probes if probe.attempt is None}
            if open_probes:
                first = min(probe.deadline for probe in open_probes)
                for key, _ in selector.select(max(0.0, first - now)):
                    key.data.advance()
    return [probe.attempt for probe in probes if probe.attempt is not None]


class _Probe:
    """Connection to one address, which is reached if the listener there sends the target's token."""

    def __init__(self, target: Target, address: str) -> None:
        self._target = target
        self._address = address
        self._answer = b""
        self._connected_after_s: float | None = None
        self._socket: socket.socket | None = None
        self.attempt: Attempt | None = None

    def begin(self, selector: selectors.BaseSelector, limit_s: float) -> None:
        self._selector = selector
        self._began = time.monotonic()
        self.deadline = self._began + limit_s
        try:
            family, kind, _, _, place = socket.getaddrinfo(self._address, self._target.port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setblocking(False)
            _check(self._socket.connect_ex(place))
            selector.register(self._socket, selectors.EVENT_WRITE, self)
        except OSError as error:
            self.end(error.strerror or str(error))

    def advance(self) -> None:
        """Continue after the connection was made or refused, or after a part of the answer has come."""
        assert self._socket is not None
        try:
            if self._connected_after_s is None:
                _check(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                self._connected_after_s = time.monotonic() - self._began
                self._selector.modify(self._socket, selectors.EVENT_READ, self)
                return
            part = self._socket.recv(_TOKEN_BYTES - len(self._answer))
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        self._answer += part
        if self._answer == self._target.token:
            self.end()
        elif not part or len(self._answer) == _TOKEN_BYTES:
            self.end("another machine answers there")

    def end(self, problem: str = "") -> None:
        elapsed_s = time.monotonic() - self._began
        seconds = elapsed_s if problem or self._connected_after_s is None else self._connected_after_s
        self.attempt = Attempt(self._target.host, self._address, seconds, problem)
        if self._socket is not None:
            with suppress(KeyError):  # fails if it was refused before it was registered
                self._selector.unregister(self._socket)
            self._socket.close()


def _check(number: int) -> None:
    """Raise OSError if this is the error number of a failed connection."""
    if number not in (0, errno.EINPROGRESS):
        raise OSError(number, os.strerror(number))


def own_addresses() -> list[Address]:
    """Return the addresses of this machine at which others may reach it: IPv4 first, loopback last.

    Loopback addresses are included, because all hosts of a test may be names of one machine without a network.
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
    except (OSError, ValueError):  # this machine has no IPv6
        return socket.create_server(("", 0), backlog=128)
