# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the rendezvous: an authenticated connection for meeting and for small values."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common import version as own
from horovod.common.joining.loss import Loss
from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.protocol import CHUNK_BYTES, AuthenticationError, ProtocolError, RendezvousError

__all__ = [
    "AuthenticationError",
    "Connection",
    "DismissedError",
    "MeetAgainError",
    "MeetResult",
    "ProtocolError",
    "RendezvousError",
    "meet",
]

_RETRY_PAUSE_S = 0.05
_ANSWER_SLACK_S = 2.0
_REQUEST_LIMIT_S = 60.0
_PERMANENT_ERRORS = (errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)


class MeetAgainError(RendezvousError):
    """Error if a generation ended before its ranks met. The elastic driver then assigns a new place.

    `missing_rank` is a rank that did not come in time, if that was the reason.
    """

    missing_rank: int | None = None


class DismissedError(RendezvousError):
    """Error if the elastic driver has removed this worker from the job."""


@dataclass(frozen=True)
class MeetResult:
    """Result of a meeting on one rank.

    Attributes:
        world_id: The world's random id.
        infos: The info of each rank, by rank.
        local_address: This rank's own address on the connection to the rendezvous.
    """

    world_id: str
    infos: list[dict[str, Any]]
    local_address: str


class Connection:
    """One authenticated connection to the rendezvous, for use by one thread at a time."""

    def __init__(self, sock: socket.socket, keys: protocol.SessionKeys, where: str, by_rank_0: bool = False) -> None:
        self._socket = sock
        self._writer = protocol.FrameWriter(keys.to_server)
        self._reader = protocol.FrameReader(keys.to_client)
        self._where = where
        self._by_rank_0 = by_rank_0
        self.local_address: str = sock.getsockname()[0]

    @classmethod
    def open(cls, address: str, port: int, secret: bytes, timeout_s: float, *, by_rank_0: bool = False) -> Connection:
        """Connect and authenticate. Try again until `timeout_s` is over, because the server may still be starting.

        Args:
            by_rank_0: True if rank 0 serves the rendezvous, and not a launcher.
        """
        where = f"{address}:{port}"
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return cls(*cls._open_once(address, port, secret, deadline), where, by_rank_0)
            except AuthenticationError as error:
                raise AuthenticationError(f"{where}: {error}") from None
            except (OSError, ProtocolError) as error:
                hopeless = isinstance(error, OSError) and error.errno in _PERMANENT_ERRORS
                if hopeless or time.monotonic() + _RETRY_PAUSE_S >= deadline:
                    raise RendezvousError(
                        f"could not reach the rendezvous at {where} within {timeout_s:g} s: {error}"
                    ) from error
            time.sleep(_RETRY_PAUSE_S)

    @staticmethod
    def _open_once(
        address: str, port: int, secret: bytes, deadline: float
    ) -> tuple[socket.socket, protocol.SessionKeys]:
        limit = min(protocol.HANDSHAKE_LIMIT_S, _time_left(deadline))
        sock = socket.create_connection((address, port), timeout=limit)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = protocol.ClientHandshake(secret)
            handshake_deadline = time.monotonic() + limit
            hello = _receive_exactly(sock, protocol.HELLO_BYTES, handshake_deadline)
            sock.sendall(handshake.prove(hello))
            keys = handshake.check(_receive_exactly(sock, protocol.VERDICT_BYTES, handshake_deadline))
            return sock, keys
        except BaseException:
            sock.close()
            raise

    def meet(
        self,
        rank: int,
        size: int,
        generation: int,
        info: dict[str, Any],
        timeout_s: float,
        version: str | None = None,
    ) -> MeetResult:
        """Wait until all `size` ranks of `generation` have come. RendezvousError names the reason if they do not."""
        request = {
            "op": "meet",
            "rank": rank,
            "size": size,
            "generation": generation,
            "version": version if version is not None else own.VERSION,
            "info": info,
            "timeout": timeout_s,
        }
        # The server knows which ranks are missing, so its time limit must expire first.
        reply = self._request(request, timeout_s + _ANSWER_SLACK_S)
        return MeetResult(reply["world_id"], reply["infos"], self.local_address)

    def ask_for_place(
        self,
        birth: int,
        timeout_s: float,
        lost: Loss | None = None,
        *,
        fresh: bool = False,
        seen: Sequence[dict[str, Any]] = (),
    ) -> tuple[int, dict[str, Any]]:
        """Wait until the elastic driver assigns a place. Return the generation and the place.

        Args:
            birth: This worker's id.
            lost: The loss that ended this worker's last world.
            fresh: True if this worker has never received the training's state.
            seen: The newest checkpoints that this worker knows of.
        """
        packed = lost.packed() if lost is not None else None
        request = {"op": "place", "birth": birth, "lost": packed, "fresh": fresh, "seen": list(seen)}
        reply = self._request(request, timeout_s)
        return int(reply["generation"]), reply["place"]

    def ask_to_stay(self, birth: int, timeout_s: float) -> None:
        """Ask the elastic driver, after SIGTERM, whether this worker may train until its next commit.

        Raise RendezvousError if the driver refuses.
        """
        self._request({"op": "preempted", "birth": birth}, timeout_s)

    def report(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send a message about this worker to the elastic driver, and wait until the rendezvous has received it."""
        self._request(message, timeout_s)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message that gets no answer."""
        self._socket.sendall(self._writer.frame(message))

    def listen(self, birth: int) -> Iterator[dict[str, Any]]:
        """Yield the elastic driver's messages to this worker, until the connection ends."""
        self._request({"op": "listen", "birth": birth}, _REQUEST_LIMIT_S)
        self._socket.settimeout(None)
        while data := self._socket.recv(256 * 1024):
            yield from self._reader.feed(data)

    def put(self, key: str, value: bytes, *, only_if_new: bool = False) -> bool:
        """Store a value of any size. It is sent in pieces and becomes visible as a whole. Return True if it was stored.

        With `only_if_new`, keep a value that the key already has, and return False.
        """
        view = memoryview(value)
        reply: dict[str, Any] = {}
        for offset in range(0, max(1, len(value)), CHUNK_BYTES):
            piece = bytes(view[offset : offset + CHUNK_BYTES])
            request = {"op": "put", "key": key, "total": len(value), "data": piece, "new": only_if_new}
            reply = self._request(request, _REQUEST_LIMIT_S)
        return bool(reply.get("stored", True))

    def add(self, group: str, member: str) -> None:
        """Add a member to a group, if it is not in it already."""
        self._request({"op": "add", "group": group, "member": member}, _REQUEST_LIMIT_S)

    def count(self, group: str) -> int:
        """Return how many members a group has."""
        return int(self._request({"op": "count", "group": group}, _REQUEST_LIMIT_S)["count"])

    def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None if there is none."""
        value = bytearray()
        while True:
            reply = self._request({"op": "get", "key": key, "offset": len(value)}, _REQUEST_LIMIT_S)
            if reply["total"] is None:
                return None
            value += reply["data"]
            if len(value) >= reply["total"]:
                return bytes(value)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(self._writer.frame(message))
            reply = self._receive(deadline)
        except TimeoutError:
            raise RendezvousError(f"the rendezvous at {self._where} did not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise RendezvousError(self._lost(error)) from error
        if not reply.get("ok"):
            raise _refusal(reply)
        return reply

    def _lost(self, error: OSError) -> str:
        if self._by_rank_0:
            return (
                f"rank 0 is lost (at {self._where}): the connection to the rendezvous, which it serves, broke ({error})"
            )
        return f"the connection to the rendezvous at {self._where} was lost ({error}): has the launcher ended?"

    def _receive(self, deadline: float) -> dict[str, Any]:
        while True:
            self._socket.settimeout(_time_left(deadline))
            data = self._socket.recv(256 * 1024)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the rendezvous")
            messages = self._reader.feed(data)
            if len(messages) > 1:
                raise ProtocolError(f"the rendezvous at {self._where} answered one request {len(messages)} times")
            if messages:
                return messages[0]


def _refusal(reply: dict[str, Any]) -> RendezvousError:
    text = str(reply.get("error"))
    if not reply.get("again"):
        return DismissedError(text) if reply.get("dismissed") else RendezvousError(text)
    error = MeetAgainError(text)
    error.missing_rank = reply.get("missing")
    return error


def meet(
    address: str,
    port: int,
    secret: bytes,
    rank: int,
    size: int,
    generation: int,
    info: dict[str, Any],
    timeout_s: float,
) -> MeetResult:
    """Connect, meet and disconnect in one call, for callers whose info does not contain their own address."""
    deadline = time.monotonic() + timeout_s
    with Connection.open(address, port, secret, timeout_s) as connection:
        return connection.meet(rank, size, generation, info, _time_left(deadline))


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")
    return left


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        sock.settimeout(_time_left(deadline))
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer during the handshake")
        data += piece
    return bytes(data)
