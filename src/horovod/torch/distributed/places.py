# SPDX-License-Identifier: Apache-2.0
"""Placement of an operation's tensors: in host memory, or on a GPU, where streams order the work.

On a GPU an operation is complete for the host when its work has been launched. A caller that uses the result makes its
own stream wait; the host does not wait for the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from horovod._engine import World
from horovod.torch.cuda_direct import current_stream, refuse_capture
from horovod.torch.distributed.buffers import units_of

Tensor = torch.Tensor


class Place:
    """Placement in host memory, where no stream has to be ordered."""

    device = -1
    stream = 0

    def launches_on(self, stream: int) -> None:
        """Record that the engine launches the operation on its own stream, after the work now on the caller's."""

    def order(self, world: World) -> None:
        """Make later work on the operation's stream wait for the operation, which has been launched."""

    def entered(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread's work goes to the operation's stream."""
        return nullcontext()

    def has_more(self) -> None:
        """Record that more work of the operation was put on its stream."""

    def follow(self, world: World) -> None:
        """Make later work on this thread's current stream wait for all work of the operation."""

    def keeps_memory(self) -> bool:
        """Return True if memory freed now is reused only after the operation, once this thread has called `follow`."""
        return True

    def outlive(self, tensors: Iterable[Tensor]) -> None:
        """Protect the tensors' memory from reuse until the operation is done, because no stream follows it."""

    def is_done(self) -> bool:
        """Return True if the device has finished a launched operation."""
        return True

    def future(self) -> Any:
        return torch.futures.Future()

    def complete_here(self) -> None:
        """Order streams that wait for a future after the operation. Call this in the future's first callback."""

    def take_output(self, world: World, handle: int, like: Tensor) -> Tensor:
        """Return the result that the engine has allocated as a flat tensor. Call it inside `entered`."""
        memory, _ = world.take_output(handle)
        return torch.frombuffer(memory, dtype=like.dtype) if memory.nbytes else like.new_empty(0)

    def when_done(self) -> Place:
        """Return the placement for an operation that is complete for the host only when the device has finished it."""
        return self


HOST = Place()


class GpuPlace(Place):
    """Placement on a GPU, with the stream that was current when the operation was called.

    The operation itself runs on `_stream`: the caller's stream, or a stream of the engine's.
    """

    def __init__(self, device: int) -> None:
        refuse_capture()
        self.device = device
        self._stream: Any = torch.cuda.current_stream(device)
        self.stream = int(self._stream.cuda_stream)
        self._beside = False
        self._more: Any = None
        self._end: Any = None

    def launches_on(self, stream: int) -> None:
        self._stream = _engines_stream(self.device, stream)
        self._beside = True

    def order(self, world: World) -> None:
        if not self._beside:
            world.let_wait(self.device, self.stream)

    def entered(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def has_more(self) -> None:
        self._more = self._stream.record_event()

    def follow(self, world: World) -> None:
        reader = current_stream(self.device)
        world.let_wait(self.device, reader)
        if self._more is not None and reader != int(self._stream.cuda_stream):
            torch.cuda.current_stream(self.device).wait_event(self._more)

    def keeps_memory(self) -> bool:
        # torch reuses memory in the order of the stream on which it was allocated, which is the caller's.
        return not self._beside or current_stream(self.device) == self.stream

    def outlive(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self._stream)

    def is_done(self) -> bool:
        if self._end is None:
            self._end = self._stream.record_event()
        return bool(self._end.query())

    def future(self) -> Any:
        return torch.futures.Future(devices=[torch.device("cuda", self.device)])

    def complete_here(self) -> None:
        # A future remembers the stream that is current when it gets its value, so make the operation's stream current.
        # torch runs this callback on its own stream, which would have to wait, too, and later restores its caller's.
        before = torch.cuda.current_device()
        torch.cuda.set_stream(self._stream)
        torch.cuda.set_device(before)

    def take_output(self, world: World, handle: int, like: Tensor) -> Tensor:
        flat = like.new_empty(max(0, world.output_rows(handle, 0)) // units_of(like.dtype))
        if flat.numel():
            world.copy_output(handle, 0, flat.data_ptr(), self.stream)
        return flat

    def when_done(self) -> Place:
        return DoneGpu(self.device)


class DoneGpu(Place):
    """Placement on a GPU that has finished the operation, so that no stream has to wait."""

    def __init__(self, device: int) -> None:
        self.device = device

    def future(self) -> Any:
        return torch.futures.Future(devices=[torch.device("cuda", self.device)])


@functools.cache
def _engines_stream(device: int, stream: int) -> Any:
    return torch.cuda.ExternalStream(stream, device=torch.device("cuda", device))  # type: ignore[no-untyped-call]


def place_of(tensors: Sequence[Tensor]) -> Place:
    """Return the placement of an operation's tensors; raise ValueError if they are on several devices."""
    if all(tensor.is_cpu for tensor in tensors):
        return HOST
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"The tensors of an operation must be on one device, but these are on {names}")
    (device,) = devices
    return GpuPlace(device.index) if device.type == "cuda" else HOST


def await_gpu(world: World, devices: Iterable[int]) -> None:
    """Wait until these GPUs have finished the work on their current streams, and the engine's work beside them."""
    for device in devices:
        refuse_capture()
        world.let_wait(device, current_stream(device))
        torch.cuda.current_stream(device).synchronize()
