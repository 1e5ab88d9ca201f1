# SPDX-License-Identifier: Apache-2.0
"""The rendezvous protocol without sockets: handshake messages, session keys and authenticated frames.

    server -> client   hello   magic, version, server nonce                         (fixed size)
    client -> server   proof   magic, version, client nonce, HMAC of both nonces    (fixed size)
    server -> client   verdict status, HMAC of both nonces                          (fixed size)
    both ways          frames  length, sequence number, msgpack payload, MAC

Until both sides have proved that they hold the job's secret, only the three fixed-size messages are parsed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]

PROTOCOL_VERSION = 1
SECRET_BYTES = 32
NONCE_BYTES = 32
MAC_BYTES = 32
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 8 * 1024 * 1024  # size of the pieces in which larger values are sent
HANDSHAKE_LIMIT_S = 5.0

_MAGIC = b"KHVDRV"
_PREFIX = struct.Struct(f"!{len(_MAGIC)}sH")
_FRAME_HEADER = struct.Struct("!IQ")

HELLO_BYTES = _PREFIX.size + NONCE_BYTES
PROOF_BYTES = _PREFIX.size + NONCE_BYTES + MAC_BYTES
VERDICT_BYTES = 1 + MAC_BYTES

ACCEPTED = 0
WRONG_SECRET = 1
WRONG_VERSION = 2


class RendezvousError(RuntimeError):
    """Error if the ranks of a job cannot meet. The text names the missing rank or the difference."""


class ProtocolError(RendezvousError):
    """Error if the peer broke the protocol: a malformed message, a wrong or replayed MAC, an oversized frame."""


class AuthenticationError(RendezvousError):
    """Error if the peer does not hold this job's secret, or uses another version of the protocol."""


def make_secret() -> bytes:
    return os.urandom(SECRET_BYTES)


def _digest(key: bytes, label: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + b"".join(parts), hashlib.sha256)


@dataclass(frozen=True)
class SessionKeys:
    """One key for each direction, so that a frame that is sent back to its sender is refused."""

    to_server: bytes
    to_client: bytes


def _session_keys(secret: bytes, server_nonce: bytes, client_nonce: bytes) -> SessionKeys:
    return SessionKeys(
        to_server=_digest(secret, b"key to server", server_nonce, client_nonce),
        to_client=_digest(secret, b"key to client", server_nonce, client_nonce),
    )


def _split_prefix(message: bytes) -> tuple[int, bytes]:
    magic, version = _PREFIX.unpack_from(message)
    if magic != _MAGIC:
        raise ProtocolError("the peer does not speak the rendezvous protocol")
    return version, message[_PREFIX.size :]


class ServerHandshake:
    """Server's side of the handshake of one connection: send `hello`, then `judge` the client's proof."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self.hello = _PREFIX.pack(_MAGIC, PROTOCOL_VERSION) + self._nonce

    def judge(self, proof: bytes) -> tuple[bytes, SessionKeys | None]:
        """Return the verdict to send, and the keys. Without keys, send the verdict and close the connection."""
        version, rest = _split_prefix(proof)
        if version != PROTOCOL_VERSION:
            return bytes([WRONG_VERSION]) + bytes(MAC_BYTES), None
        client_nonce, mac = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        if not hmac.compare_digest(mac, _digest(self._secret, b"client", self._nonce, client_nonce)):
            return bytes([WRONG_SECRET]) + bytes(MAC_BYTES), None
        verdict = bytes([ACCEPTED]) + _digest(self._secret, b"server", self._nonce, client_nonce)
        return verdict, _session_keys(self._secret, self._nonce, client_nonce)


class ClientHandshake:
    """Client's side of the handshake: `prove` answers the hello, `check` verifies the verdict."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._server_nonce = b""
        self._server_version = PROTOCOL_VERSION

    def prove(self, hello: bytes) -> bytes:
        self._server_version, self._server_nonce = _split_prefix(hello)
        mac = _digest(self._secret, b"client", self._server_nonce, self._nonce)
        return _PREFIX.pack(_MAGIC, PROTOCOL_VERSION) + self._nonce + mac

    def check(self, verdict: bytes) -> SessionKeys:
        status, mac = verdict[0], verdict[1:]
        if status == WRONG_VERSION or self._server_version != PROTOCOL_VERSION:
            raise AuthenticationError(
                f"the rendezvous uses protocol version {self._server_version}, this process uses {PROTOCOL_VERSION}: "
                "install the same khorovod version for all workers"
            )
        expected = _digest(self._secret, b"server", self._server_nonce, self._nonce)
        if status != ACCEPTED or not hmac.compare_digest(mac, expected):
            raise AuthenticationError(
                "the rendezvous and this process do not share the same job secret: is it the rendezvous of another job?"
            )
        return _session_keys(self._secret, self._server_nonce, self._nonce)


class FrameWriter:
    """Writer of frames, numbered from 0, with the key of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sequence = 0

    def frame(self, message: dict[str, Any]) -> bytes:
        payload: bytes = msgpack.packb(message)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"a message of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}")
        body = _FRAME_HEADER.pack(len(payload), self._sequence) + payload
        self._sequence += 1
        return body + _digest(self._key, b"frame", body)


class FrameReader:
    """Reader of frames. Its memory grows only with received bytes, and never beyond the limit of one frame."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sequence = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that `data` completes. After a ProtocolError the connection must be closed."""
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < _FRAME_HEADER.size:
            return None
        length, sequence = _FRAME_HEADER.unpack_from(self._buffer)
        if length > MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"a frame announces {length} bytes; the limit is {MAX_PAYLOAD_BYTES}")
        end = _FRAME_HEADER.size + length
        if len(self._buffer) < end + MAC_BYTES:
            return None
        body, mac = bytes(self._buffer[:end]), bytes(self._buffer[end : end + MAC_BYTES])
        if not hmac.compare_digest(mac, _digest(self._key, b"frame", body)):
            raise ProtocolError("a frame has the wrong MAC")
        if sequence != self._sequence:
            raise ProtocolError(f"frame {sequence} arrived instead of frame {self._sequence} (a replay?)")
        del self._buffer[: end + MAC_BYTES]
        self._sequence += 1
        return _decode(body[_FRAME_HEADER.size :])


def _decode(payload: bytes) -> dict[str, Any]:
    try:
        message = msgpack.unpackb(payload)
    except Exception as error:  # msgpack raises unrelated exception classes for malformed input
        raise ProtocolError(f"a frame does not hold a valid message: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame does not hold a message")
    return message
