# SPDX-License-Identifier: Apache-2.0
"""Handles of the asynchronous collectives that a communication hook yields, and for which the reducer waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from horovod._engine import EngineError
from horovod.common.calls import Call
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.torch import direct

_POLL_S = 0.0005  # polling interval for operations that have no wait with a time limit


class Handle(Protocol):
    """Collective in flight. Hooks yield it, and the reducer sends the hook its result."""

    def is_complete(self) -> bool:
        """Return True if `result` would not block."""

    def wait(self, limit_s: float) -> bool:
        """Wait for at most `limit_s`. Return True if the operation has completed."""

    def result(self) -> Any:
        """Wait for the operation and return its result, or raise its error. Call it only once."""


class Collective:
    """Handle of one operation of the engine."""

    def __init__(self, call: Call, tensor: torch.Tensor, change: Callable[[Any], Any] | None = None) -> None:
        """Begin the operation. `change` converts its result to what the hook is sent."""
        self._change = change
        self._pending: Pending = direct.collectives_for(tensor).start(call, [tensor], will_wait=False)

    def is_complete(self) -> bool:
        return self._pending.is_complete()

    def wait(self, limit_s: float) -> bool:
        pending: Any = self._pending
        if pending.world is not default_context.world:
            return _poll(self, limit_s)
        try:
            return bool(pending.world.wait(pending.handle, limit_s))
        except EngineError:
            return True  # `result` raises the error

    def result(self) -> Any:
        result = default_context.handles.finish(self._pending)
        return result if self._change is None else self._change(result)

    def abandon(self) -> None:
        """Keep the tensors alive until the engine is done with them; no caller will ask for the result."""
        if not self._pending.handle:
            return  # the result was already taken
        if self._pending.is_complete():
            with suppress(Exception):  # no caller asks for it
                self.result()
        else:
            default_context.handles.add(self._pending)


class Numbered:
    """Handle of an operation that the hook has begun by a function of the API, such as hvd.allreduce_async()."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def is_complete(self) -> bool:
        return bool(direct.poll(self._handle))

    def wait(self, limit_s: float) -> bool:
        return _poll(self, limit_s)

    def result(self) -> Any:
        return direct.synchronize(self._handle)


class Several:
    """Handle of several operations that the hook waits for together."""

    def __init__(self, handles: Sequence[Handle], change: Callable[[list[Any]], Any] = tuple) -> None:
        self._handles = handles
        self._change = change

    def is_complete(self) -> bool:
        return all(it.is_complete() for it in self._handles)

    def wait(self, limit_s: float) -> bool:
        give_up = time.monotonic() + limit_s
        return all(it.wait(max(0.0, give_up - time.monotonic())) for it in self._handles)

    def result(self) -> Any:
        results, failure = [], None
        for handle in self._handles:
            try:
                results.append(handle.result())
            except Exception as error:
                failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame
        return self._change(results)


def as_handle(yielded: Any) -> Handle:
    """Return the handle for the value that a hook has yielded; raise TypeError if it cannot be waited for."""
    if isinstance(yielded, Collective | Several | Numbered):
        return yielded
    if isinstance(yielded, list | tuple):
        return Several([as_handle(it) for it in yielded])
    if isinstance(yielded, int) and not isinstance(yielded, bool):
        return Numbered(yielded)
    raise TypeError(
        f"it yielded {type(yielded).__name__}; yield what bucket.allreduce_async(), bucket.allgather_async() or "
        "bucket.alltoall_async() returns, or a list of these"
    )


def _poll(handle: Handle, limit_s: float) -> bool:
    give_up = time.monotonic() + limit_s
    while not handle.is_complete():
        if time.monotonic() >= give_up:
            return False
        time.sleep(_POLL_S)
    return True
