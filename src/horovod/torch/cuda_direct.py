# SPDX-License-Identifier: Apache-2.0
"""Collectives on CUDA tensors where they lie: the engine orders its work after the caller's stream, and that after it.

Nobody waits for the device: an operation is done when its work has been launched, and the caller's stream waits for the
rest. A result whose size only the engine knows lies in its memory, and is copied to a tensor when somebody asks for it.
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

_used: set[int] = set()  # GPUs on which this process has had operations
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(device: int) -> int:
    """The stream that this thread puts its work on, by its address."""
    if _current_stream is not None:
        return int(_current_stream(device))
    return int(torch.cuda.current_stream(device).cuda_stream)


def follow_streams(streams: Iterable[tuple[int, int]]) -> None:
    """Let this thread's streams wait for what is on others by now, each of a device."""
    for device, stream in streams:
        own = torch.cuda.current_stream(device)
        if stream == own.cuda_stream:
            continue
        # ExternalStream takes an address of 0 for none at all.
        cuda: Any = torch.cuda
        own.wait_stream(cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device))


class CudaAdapter(TorchAdapter):
    """Tensors of one GPU."""

    @staticmethod
    def source(tensor: Tensor) -> Description:
        if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.is_contiguous():
            refuse(tensor)
        return tensor.data_ptr(), tuple(tensor.shape), ID_BY_DTYPE[tensor.dtype]

    target = source


class DeviceWorld:
    """Stands in for the engine's World in one operation on a GPU's tensors."""

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
        """Complete the locations with this operation's GPU and stream."""
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
        """What uses the result waits for it, and so does whoever gets the tensors' memory next."""
        self._range.end()
        reader = current_stream(self._device)
        self._world.let_wait(self._device, reader)
        if reader != self._stream:
            self._world.let_wait(self._device, self._stream)

    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        return self._world.take_output(handle, index)

    def copied(self, handle: int, index: int, like: Tensor) -> Tensor:
        """An output that the engine allocated, as a tensor of as many rows of `like`."""
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
    """The same for a message: when it is done, so is the GPU."""

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._world.send(peer, tag, address, size, self._device, self._stream)

    def recv(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._world.recv(peer, tag, address, size, self._device, self._stream)

    def _order(self) -> None:
        self._range.end()


class DeviceCollectives(TensorCollectives):
    """The collectives on CUDA tensors; `staged` does those that cannot be done where the tensors lie."""

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
    """Wait for GPUs, and raise if a rank was lost meanwhile.

    An operation is done when its work is launched; what the GPU then does with the tensors of a rank that is no longer
    there is of no account.
    """
    if not torch.cuda.is_initialized() or not context.is_initialized:  # type: ignore[no-untyped-call]
        return
    devices = tuple(_used) or (torch.cuda.current_device(),)  # other threads may use one more meanwhile
    for device in devices:
        torch.cuda.synchronize(device)
    try:
        for device in devices:
            context.world.let_wait(device, 0)
    except EngineError as error:
        raise translate(error, "a commit") from None


def refuse_capture() -> None:
    """A captured graph would repeat the kernels and not what ranks say to each other."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "Horovod's operations cannot be captured in a CUDA graph: other ranks take part in each run. Call them "
            'outside of the graph; with torch.compile use a mode other than "reduce-overhead" for functions that '
            "contain them."
        )
