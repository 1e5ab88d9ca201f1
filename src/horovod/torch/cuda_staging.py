# SPDX-License-Identifier: Apache-2.0
"""Collectives on CUDA tensors through pinned host memory.

An operation copies its input to the host on a separate stream, and submits it to the engine when the copy is complete.
When the caller asks for the result, the operation copies it to the device on another stream; the caller's stream waits
for this copy, not the processor. Arguments are checked and unnamed operations numbered at the call, so that only the
submission differs from operations in host memory.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from horovod._engine import EngineError, Output, World
from horovod.common.calls import ALLTOALL, Call
from horovod.common.context import Context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.torch.adapter import ID_BY_DTYPE, Tensor, TorchAdapter, refuse
from horovod.torch.cuda_streams import Event, Streams
from horovod.torch.submitter import Submitter

_INVALID, _FAILED = 2, 4  # error codes of the engine (hvd::Code)
_tickets = itertools.count(1 << 40)  # tickets stand for handles; they begin far above the engine's handles


class StagedAdapter(TorchAdapter):
    """Adapter whose outputs are in pinned memory, so that they are copied to the device directly."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def empty(self, like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, int]:  # type: ignore[override]
        tensor = self._streams.host_memory(shape, like.dtype)
        return tensor, tensor.data_ptr()


class DeferredWorld:
    """Substitute for the engine's World in one operation, which it submits when the input is in host memory."""

    def __init__(self, world: World, keep: Any, arrived: Event, submitter: Submitter | None, names: Names) -> None:
        self._world = world
        self._keep = keep  # memory to which a later submission refers by address
        self._arrived = arrived
        self._submitter = submitter  # None if the caller waits anyway
        self._names = names
        self._submitted: Any = None
        self._handle = 0
        self._failure: EngineError | None = None
        self._over = False

    def submit(self, *arguments: Any) -> int:
        return self._later(self._world.submit, arguments)

    def submit_group(self, *arguments: Any) -> int:
        return self._later(self._world.submit_group, arguments)

    def _later(self, submit: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        set_id, name = arguments[:2]
        self._names.claim(set_id, name, self)
        if self._submitter is None:
            self._arrived.synchronize()
            self._handle = submit(*arguments)
        else:
            self._submitted = self._submitter.put(lambda: self._submit(submit, arguments))
        return next(_tickets)

    def _submit(self, submit: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        """Submit the operation, on the submitter's thread; a failure is stored for the thread that waits."""
        try:
            self._arrived.synchronize()
            self._handle = submit(*arguments)
        except EngineError as error:
            self._failure = error
        except Exception as error:  # a late error of CUDA, which the waiting thread has to receive
            self._failure = EngineError(_FAILED, f"{arguments[1]}: copying the tensor to the host failed: {error}", -1)

    def poll(self, ticket: int = 0) -> bool:
        if self._submitted is not None and not self._submitted.is_set():
            return False
        return self._over or self._failure is not None or self._world.poll(self._handle)

    def wait(self, ticket: int) -> None:
        if self._submitted is not None:
            self._submitted.wait()
        if self._failure is not None:
            raise self._failure
        self._world.wait(self._handle)

    def finish(self, ticket: int) -> None:
        self.wait(ticket)
        self.release(ticket)

    def take_output(self, ticket: int, index: int = 0) -> tuple[Output, int]:
        return self._world.take_output(self._handle, index)

    def received_splits(self, ticket: int, members: int) -> list[int]:
        return self._world.received_splits(self._handle, members)

    def release(self, ticket: int) -> None:
        self._over = True
        if self._handle:
            self._world.release(self._handle)


class Names:
    """Names of operations that may not have reached the engine yet, so that a second use is an error at the call."""

    def __init__(self) -> None:
        self._worlds: weakref.WeakValueDictionary[tuple[int, str], DeferredWorld] = weakref.WeakValueDictionary()

    def claim(self, set_id: int, name: str, world: DeferredWorld) -> None:
        other = self._worlds.get((set_id, name))
        if other is not None and not other.poll():
            text = f"'{name}' is already being processed: wait for it (synchronize) or give this one another name"
            raise EngineError(_INVALID, f"A tensor named {text}", -1)
        self._worlds[set_id, name] = world


class _Stage:
    """Transfers of one operation's tensors from the device to the host and back."""

    def __init__(self, streams: Streams, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout is not torch.strided or not tensor.is_contiguous():
                refuse(tensor)
            ID_BY_DTYPE[tensor.dtype]  # raises an error if the engine does not support the dtype
        self._streams = streams
        self._tensors = tuple(tensors)
        self._device = tensors[0].device

    def down(self) -> tuple[list[Tensor], Event]:
        return self._streams.to_host(self._tensors)

    def up(self, pending: Pending, in_place: bool = False) -> Pending:
        """Make the operation copy its result back to the device: into the inputs, or into new tensors."""
        collect_on_host = pending.collect
        targets = self._tensors if in_place else None

        def collect(done: Pending) -> Any:
            result = done.output if collect_on_host is None else collect_on_host(done)
            return self._lift(result, targets)

        pending.collect = collect
        return pending

    def output_up(self, pending: Pending) -> Pending:
        """Make an alltoall copy its output back to the device; the received splits are not copied."""
        collect_on_host = pending.collect
        assert collect_on_host is not None

        def collect(done: Pending) -> tuple[Tensor, Tensor]:
            output, received = collect_on_host(done)
            return self._streams.to_device([output], None, self._device)[0], received

        pending.collect = collect
        return pending

    def _lift(self, result: Any, targets: tuple[Tensor, ...] | None) -> Any:
        if isinstance(result, Tensor):
            return self._streams.to_device([result], targets, self._device)[0]
        return tuple(self._streams.to_device(result, targets, self._device))


class StagedCollectives(Collectives[Tensor]):
    """Collectives on device tensors that run on host copies, which the engine may overwrite."""

    def __init__(self, context: Context, streams: Streams) -> None:
        super().__init__(context, StagedAdapter(streams))
        self._streams = streams
        self._submitter = Submitter()
        self._names = Names()

    def start(self, call: Call, tensors: Sequence[Tensor], will_wait: bool) -> Pending:
        member = self._member(call.process_set)
        stage = _Stage(self._streams, tensors)
        copies, arrived = stage.down()
        world = DeferredWorld(member.world, copies, arrived, None if will_wait else self._submitter, self._names)
        pending = self._start_in(world, member, replace(call, in_place=True), copies, will_wait)
        if call.kind == ALLTOALL:
            return stage.output_up(pending)
        return stage.up(pending, call.in_place)
