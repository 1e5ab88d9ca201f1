# SPDX-License-Identifier: Apache-2.0
"""Collectives directly on CUDA tensors, ordered after the caller's stream and before its later work.

The host does not wait for the device: an operation is complete when its work has been launched, and the caller's stream
waits for the rest. If only the engine knows the size of a result, the result is in the engine's memory, and is copied
to a tensor when the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from horovod._engine import EngineCall, EngineError, Output, TensorLocation, World
from horovod.common.calls import Call
from horovod.common.context import Context
from horovod.common.handles import Pending, translate
from horovod.common.ops import Collectives, Description
from horovod.common.rules import Adasum
from horovod.torch.adapter import ID_BY_DTYPE, Tensor, TorchAdapter, refuse
from horovod.torch.lazy_bits import TensorCollectives
from horovod.torch.nvtx_ranges import NvtxRange

_used: set[int] = set()  # GPUs on which this process has run operations
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(device: int) -> int:
    """Return the address of this thread's current stream on a device."""
    if _current_stream is not None:
        return int(_current_stream(device))
    return int(torch.cuda.current_stream(device).cuda_stream)


def follow_streams(streams: Iterable[tuple[int, int]]) -> None:
    """Make this thread's current streams wait for the work that is now on others, given as (device, stream)."""
    for device, stream in streams:
        own = torch.cuda.current_stream(device)
        if stream == own.cuda_stream:
            continue
        # For ExternalStream, an address of 0 means no stream instead of the default stream.
        cuda: Any = torch.cuda
        own.wait_stream(cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device))


class CudaAdapter(TorchAdapter):
    """Adapter for tensors of one GPU."""

    @staticmethod
    def source(tensor: Tensor) -> Description:
        if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.is_contiguous():
            refuse(tensor)
        return tensor.data_ptr(), tuple(tensor.shape), ID_BY_DTYPE[tensor.dtype]

    target = source


class DeviceWorld:
    """Substitute for the engine's World in one operation on a GPU's tensors."""

    def __init__(self, world: World, device: int, name: str) -> None:
        self._world = world
        self._range = NvtxRange(name)
        self._device = device
        self._stream = current_stream(device)
        _used.add(device)

    def submit(
        self, process_set: int, name: str, call: EngineCall, tensor: TensorLocation, splits: Sequence[int] = ()
    ) -> int:
        self._put_on_stream([tensor])
        return self._world.submit(process_set, name, call, tensor, splits)

    def submit_group(
        self, process_set: int, group: str, names: Sequence[str], call: EngineCall, tensors: Sequence[TensorLocation]
    ) -> int:
        self._put_on_stream(tensors)
        return self._world.submit_group(process_set, group, names, call, tensors)

    def submit_many(
        self,
        process_set: int,
        names: Sequence[str],
        call: EngineCall,
        tensors: Sequence[TensorLocation],
        started: list[int],
    ) -> None:
        self._put_on_stream(tensors)
        self._world.submit_many(process_set, names, call, tensors, started)

    def _put_on_stream(self, tensors: Sequence[TensorLocation]) -> None:
        """Set this operation's GPU and stream in the tensors' locations."""
        for tensor in tensors:
            tensor.device, tensor.stream = self._device, self._stream

    def poll(self, handle: int) -> bool:
        return self._world.poll(handle)

    def wait(self, handle: int) -> None:
        self._world.wait(handle)
        self._order()

    def finish(self, handle: int) -> None:
        self._world.finish(handle)
        self._order()

    def finish_all(self, handles: Sequence[int]) -> None:
        self._world.finish_all(handles)
        self._order()

    def _order(self) -> None:
        """Make the stream that uses the result, and that of the tensors' memory, wait for the operation."""
        self._range.end()
        reader = current_stream(self._device)
        self._world.let_wait(self._device, reader)
        if reader != self._stream:
            self._world.let_wait(self._device, self._stream)

    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        return self._world.take_output(handle, index)

    def copied(self, handle: int, index: int, like: Tensor) -> Tensor:
        """Copy an output that the engine allocated into a new tensor, whose rows are shaped like those of `like`."""
        rows = self._world.output_rows(handle, index)
        tensor = like.new_empty((rows, *like.shape[1:]))
        self._world.copy_output(handle, index, tensor.data_ptr(), current_stream(self._device))
        return tensor

    def received_splits(self, handle: int, members: int) -> list[int]:
        return self._world.received_splits(handle, members)

    def release(self, handle: int) -> None:
        self._range.end()
        self._world.release(handle)


class MessageWorld(DeviceWorld):
    """Substitute for the engine's World in one message; when the message is complete, the GPU has finished it."""

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._world.send(peer, tag, address, size, self._device, self._stream)

    def recv(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._world.recv(peer, tag, address, size, self._device, self._stream)

    def _order(self) -> None:
        self._range.end()


class DeviceCollectives(TensorCollectives):
    """Collectives on CUDA tensors; `staged` runs those that need a copy in host memory."""

    def __init__(self, context: Context, staged: Collectives[Tensor]) -> None:
        super().__init__(context, CudaAdapter())
        self._staged = staged

    def start_on_memory(self, call: Call, tensors: Sequence[Tensor], will_wait: bool) -> Pending:
        refuse_capture()
        if call.op == Adasum or not tensors:
            return self._staged.start(call, tensors, will_wait)
        member = self._member(call.process_set)
        world = DeviceWorld(member.world, tensors[0].get_device(), call.operation)
        return self._start_in(world, member, call, tensors, will_wait)

    def _gathered(self, pending: Pending) -> Tensor:
        world: Any = pending.world
        tensor: Tensor = world.copied(pending.handle, 0, pending.keep)
        return tensor

    def _gathered_group(self, pending: Pending) -> tuple[Tensor, ...]:
        world: Any = pending.world
        return tuple(world.copied(pending.handle, index, tensor) for index, tensor in enumerate(pending.keep))

    def _world_of_batch(self, world: World) -> DeviceWorld:
        refuse_capture()
        return DeviceWorld(world, torch.cuda.current_device(), "allreduces")

    def _world_of_message(self, direction: str, world: World, tensor: Tensor) -> MessageWorld:
        refuse_capture()
        return MessageWorld(world, tensor.get_device(), direction)


def confirm(context: Context) -> None:
    """Wait for GPUs, and raise an error if a rank was lost before they finished.

    An operation is complete when its work is launched. If a rank was lost, the result of this work is not usable.
    """
    if not torch.cuda.is_initialized() or not context.is_initialized:  # type: ignore[no-untyped-call]
        return
    devices = tuple(_used) or (torch.cuda.current_device(),)  # a copy, because other threads may add a GPU meanwhile
    for device in devices:
        torch.cuda.synchronize(device)
    try:
        for device in devices:
            context.world.let_wait(device, 0)
    except EngineError as error:
        raise translate(error, "a commit") from None


def refuse_capture() -> None:
    """Raise RuntimeError in CUDA graph capture: a graph would repeat kernels, but not the ranks' negotiation."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "Horovod's operations cannot be captured in a CUDA graph: other ranks take part in each run. Call them "
            'outside of the graph; with torch.compile use a mode other than "reduce-overhead" for functions that '
            "contain them."
        )
