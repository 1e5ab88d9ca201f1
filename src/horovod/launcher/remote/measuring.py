# SPDX-License-Identifier: Apache-2.0
"""Measurement of the connection from this host to another: round trips, then bandwidth.

Both ends first prove that they hold a secret, which each received through its agent's connection. Once connected, a
measurement takes a third of a second.
"""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from horovod.common.readiness import readable_and_writable
from horovod.common.rendezvous.protocol import (
    HELLO_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    ClientHandshake,
    RendezvousError,
    ServerHandshake,
)
from horovod.launcher.remote.probing import CONNECT_LIMIT_S, Listener

ROUND_TRIPS_S = 0.1
_MOST_ROUND_TRIPS = 200
_RAMP_S = 0.05  # time for TCP to reach its full speed
_WINDOW_S = 0.15
_NOTHING_COMES_S = 0.3
_ANSWER_LIMIT_S = 1.0
_DRAIN_S = 0.2
_MOST_CONNECTIONS = 16
_CHUNK = 1 << 20
_PING, _FLOOD = b"p", b"f"
_ANSWER = struct.Struct("!Qd")  # bytes received, and in how many seconds


@dataclass(frozen=True)
class Way:
    """Connection from one host to another. `problem` says why figures are missing."""

    round_trip_s: float | None = None
    bandwidth: float | None = None  # bytes per second
    problem: str = ""


class MeasuringListener(Listener):
    """Receiving end of measurements. It serves only peers that hold the secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(self._begin)

    def _begin(self, connection: socket.socket) -> None:
        if not self._room.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._serve, args=(connection,), name="horovod-measured", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, RendezvousError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._is_trusted(connection):
                    _answer_pings(connection)
                    connection.sendall(_ANSWER.pack(*_count(connection)))
                    _drain(connection)
        finally:
            self._room.release()

    def _is_trusted(self, connection: socket.socket) -> bool:
        handshake = ServerHandshake(self._secret)
        connection.sendall(handshake.hello)
        verdict, keys = handshake.judge(_read(connection, PROOF_BYTES))
        connection.sendall(verdict)
        return keys is not None


def measure(address: str, port: int, secret: bytes) -> Way:
    """Measure the connection to a MeasuringListener."""
    round_trip_s = None
    try:
        with socket.create_connection((address, port), CONNECT_LIMIT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = ClientHandshake(secret)
            connection.sendall(handshake.prove(_read(connection, HELLO_BYTES)))
            handshake.check(_read(connection, VERDICT_BYTES))
            round_trip_s = _time_round_trips(connection)
            count, seconds = _flood(connection)
    except OSError as error:
        return Way(round_trip_s, None, error.strerror or str(error))
    except RendezvousError:
        return Way(None, None, "another program answers there")
    if not count:
        return Way(round_trip_s, None, "small packets arrive, large ones do not")
    return Way(round_trip_s, count / seconds)


def _time_round_trips(connection: socket.socket) -> float:
    """Return the median round trip time."""
    times: list[float] = []
    end = time.monotonic() + ROUND_TRIPS_S
    while not times or (len(times) < _MOST_ROUND_TRIPS and time.monotonic() < end):
        begin = time.perf_counter()
        connection.sendall(_PING)
        _read(connection, 1)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _answer_pings(connection: socket.socket) -> None:
    while _read(connection, 1) == _PING:
        connection.sendall(_PING)


def _flood(connection: socket.socket) -> tuple[int, float]:
    """Send data until the other end reports how much it received and in how many seconds."""
    connection.sendall(_FLOOD)
    chunk = memoryview(bytearray(_CHUNK))
    answer = b""
    deadline = time.monotonic() + _ANSWER_LIMIT_S
    connection.setblocking(False)
    while len(answer) < _ANSWER.size:
        left = deadline - time.monotonic()
        readable, writable = readable_and_writable(connection, left)
        if readable:
            data = connection.recv(_ANSWER.size - len(answer))
            if not data:
                raise ConnectionError("the other end has closed the connection")
            answer += data
        elif writable:
            with suppress(BlockingIOError):
                connection.send(chunk)
        if left <= 0:
            raise TimeoutError("the other host did not answer the measurement in time")
    count, seconds = _ANSWER.unpack(answer)
    return count, seconds


def _count(connection: socket.socket) -> tuple[int, float]:
    """Return how many bytes came in how many seconds, without the time in which TCP reached its speed.

    If all data came in that time, return the total.
    """
    buffer = bytearray(_CHUNK)
    total = early = 0
    begin = counted_from = time.monotonic()
    end = begin + _NOTHING_COMES_S
    while (left := end - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            got = connection.recv_into(buffer)
        except TimeoutError:
            break
        now = time.monotonic()
        if not got:
            break
        if not total:
            begin = counted_from = now
            end = now + _RAMP_S + _WINDOW_S
        total += got
        if now <= begin + _RAMP_S:
            early, counted_from = total, now
    seconds = time.monotonic() - counted_from
    return (total - early, seconds) if total > early and seconds > 0 else (total, time.monotonic() - begin)


def _drain(connection: socket.socket) -> None:
    """Read the remaining bytes.

    Closing a connection with unread bytes resets it, and the answer might be lost.
    """
    buffer = bytearray(_CHUNK)
    end = time.monotonic() + _DRAIN_S
    while (left := end - time.monotonic()) > 0:
        connection.settimeout(left)
        if not connection.recv_into(buffer):
            return


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other end has closed the connection")
        data += part
    return data
