# SPDX-License-Identifier: Apache-2.0
"""Data that the rendezvous server keeps for its clients: values by key, and groups whose members are counted.

This module uses no sockets; the server sends the answers.
"""

from __future__ import annotations

from typing import Any

from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.meeting import Reply


class Store:
    """Values and groups. `put` and `get` are thread-safe; other methods run on the server's thread."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._groups: dict[str, set[str]] = {}

    def put(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def answer(self, message: dict[str, Any], uploads: dict[str, bytearray]) -> Reply:
        """Execute a client's request and return the answer. `uploads` holds this client's incomplete values."""
        match message["op"]:
            case "put":
                return self._put_piece(message, uploads)
            case "get":
                return self._get_piece(message)
            case "add":
                self._groups.setdefault(_text(message, "group"), set()).add(_text(message, "member"))
                return {"ok": True}
            case _:
                return {"ok": True, "count": len(self._groups.get(_text(message, "group"), ()))}

    def _put_piece(self, message: dict[str, Any], uploads: dict[str, bytearray]) -> Reply:
        """Add a piece to an upload. The last piece makes the value visible.

        If the value must be new, an existing value is kept, and the answer to the last piece says so.
        """
        key, total, data = _text(message, "key"), message["total"], message["data"]
        if not isinstance(data, bytes):
            raise TypeError("put takes bytes")
        upload = uploads.setdefault(key, bytearray())
        upload += data
        if len(upload) < total:
            return {"ok": True}
        value = bytes(uploads.pop(key))
        is_stored = not (message.get("new") and key in self._values)
        if is_stored:
            self._values[key] = value
        return {"ok": True, "stored": is_stored}

    def _get_piece(self, message: dict[str, Any]) -> Reply:
        key, offset = message["key"], message["offset"]
        value = self._values.get(key)
        if value is None:
            return {"ok": True, "total": None, "data": b""}
        return {"ok": True, "total": len(value), "data": value[offset : offset + protocol.CHUNK_BYTES]}


def _text(message: dict[str, Any], name: str) -> str:
    value = message[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text")
    return value
