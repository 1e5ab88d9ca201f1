# SPDX-License-Identifier: Apache-2.0
"""Watch for Ray's head node: without it, Ray's calls wait for a minute and then end the whole process."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import ray

from horovod.common.exceptions import HorovodInternalError
from horovod.common.log import logger

_CONNECT_LIMIT_S = 3.0
_LOOK_AGAIN_S = 2.0
_WARN_AFTER_S = 4.0
GIVE_UP_AFTER_S = 20.0  # less than Ray's own limit, after which this process would end without an error


class HeadNodeLostError(HorovodInternalError):
    """Error: Ray's head node does not answer."""


def connect() -> None:
    """Connect to a cluster: the one in use, otherwise the one in RAY_ADDRESS, otherwise a new one on this machine."""
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if address and "://" not in address and not answers(address):
        raise HeadNodeLostError(_text(address) + ". RAY_ADDRESS names it")
    ray.init()


def answers(address: str) -> bool:
    """Return True if a program listens at host:port, or if the address has another form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


class HeadWatch:
    """Watch for the head node. Call `look()` while waiting.

    A restarted head has time to come back, because workers do not need it meanwhile.
    """

    def __init__(self) -> None:
        self._address = _address()
        self._next = 0.0
        self._silent_since: float | None = None
        self._warned = False

    def require(self) -> None:
        """Raise HeadNodeLostError at once if the head does not answer, because nothing can be started without it."""
        if self._address is not None and not answers(self._address):
            raise HeadNodeLostError(_text(self._address))

    def look(self) -> None:
        now = time.monotonic()
        if self._address is None or now < self._next:
            return
        self._next = now + _LOOK_AGAIN_S
        if answers(self._address):
            self._silent_since, self._warned = None, False
            return
        self._silent_since = self._silent_since if self._silent_since is not None else now
        silent_s = now - self._silent_since
        if silent_s >= GIVE_UP_AFTER_S:
            raise HeadNodeLostError(f"{_text(self._address)} for {silent_s:.0f} s: results cannot be fetched any more")
        if silent_s >= _WARN_AFTER_S and not self._warned:
            self._warned = True
            logger.warning("%s; the job is given up after %g s", _text(self._address), GIVE_UP_AFTER_S)


def _address() -> str | None:
    """Return the address of Ray's head, or None with Ray's client, whose connection detects a loss itself."""
    if ray.util.client.ray.is_connected():
        return None
    context: Any = ray.get_runtime_context()
    return str(context.gcs_address)


def _text(address: str) -> str:
    return f"Ray's head node at {address} does not answer"
