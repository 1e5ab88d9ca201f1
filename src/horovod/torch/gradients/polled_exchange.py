# SPDX-License-Identifier: Apache-2.0
"""Exchange with the same operation on the wire as the native one, but which can be polled.

A rank that waits for several optimizers must meanwhile run communication hooks, whose collectives the native Exchange
cannot wait for.
"""

from __future__ import annotations

import torch

from horovod._engine import EngineCall, TensorLocation
from horovod.common.calls import ALLREDUCE
from horovod.common.dtypes import UINT8
from horovod.common.membership import Membership
from horovod.common.rules import Max

_abandoned: list[torch.Tensor] = []  # kept alive because the engine may still write to them


class PolledExchange:
    """Exchange of one message, begun by the constructor."""

    def __init__(self, member: Membership, name: str, message: bytes) -> None:
        self._world = member.world
        self._tensor = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        address = self._tensor.data_ptr()
        tensor = TensorLocation(UINT8, (len(message),), address, address)
        self._handle = self._world.submit(member.id, name, EngineCall(ALLREDUCE, Max, will_wait=True), tensor)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            _abandoned.append(self._tensor)

    def is_complete(self) -> bool:
        """Return True if `finish` would not block."""
        return self._world.poll(self._handle)

    def wait(self, limit_s: float) -> None:
        """Wait for at most `limit_s`. Raise EngineError if the exchange has failed."""
        self._world.wait(self._handle, limit_s)

    def finish(self) -> bytes:
        """Wait for the other ranks and return all messages combined. Call it only once."""
        self._world.finish(self._handle)  # releases the handle even if it raises
        self._handle = 0
        return self._tensor.numpy().tobytes()
