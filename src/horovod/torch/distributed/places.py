# SPDX-License-Identifier: Apache-2.0
"""Where an operation's tensors lie: in the memory of the host, or on a GPU, where a stream says when they are ready.

On a GPU an operation is over for the host when its work is launched. Whoever uses the result then lets its own stream
wait; nobody waits for the GPU.
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
    """The memory of the host, where nothing has to be ordered."""

    device = -1
    stream = 0

    def launches_on(self, stream: int) -> None:
        """The operation goes on a stream of the engine's, after what is on the caller's now."""

    def order(self, world: World) -> None:
        """The operation is launched: let what its own stream does next come after it."""

    def entered(self) -> AbstractContextManager[Any]:
        """While it lasts, this thread's work goes to the operation's own stream."""
        return nullcontext()

    def has_more(self) -> None:
        """Something was put on the operation's own stream that belongs to it."""

    def follow(self, world: World) -> None:
        """Let what this thread does next come after all that belongs to the operation."""

    def keeps_memory(self) -> bool:
        """Whether memory that is given back here and now is reused after the operation, once this thread follows it."""
        return True

    def outlive(self, tensors: Iterable[Tensor]) -> None:
        """Nobody follows the operation: memory of other streams must not be given away before it is done."""

    def is_done(self) -> bool:
        """Whether the device is done with a launched operation."""
        return True

    def future(self) -> Any:
        return torch.futures.Future()

    def complete_here(self) -> None:
        """In the callback that completes a future: who waits for it comes after the operation."""

    def take_output(self, world: World, handle: int, like: Tensor) -> Tensor:
        """What the engine has allocated for the result, as a flat tensor. While `entered`."""
        memory, _ = world.take_output(handle)
        return torch.frombuffer(memory, dtype=like.dtype) if memory.nbytes else like.new_empty(0)

    def when_done(self) -> Place:
        """The same for an operation that is over for the host when the device is done with it."""
        return self


HOST = Place()


class GpuPlace(Place):
    """A GPU, and the stream that was current when the operation was called.

    `_stream` is where the operation itself goes: there, or on a stream of the engine's.
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
        # torch reuses it in the order of the stream that it was taken on, which is the caller's.
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
        # A future remembers the stream that is current when it gets its value. torch calls back on a stream of its own,
        # which would be one more to wait; it restores its caller's afterwards.
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
    """A GPU that has nothing left to do: no stream has to wait."""

    def __init__(self, device: int) -> None:
        self.device = device

    def future(self) -> Any:
        return torch.futures.Future(devices=[torch.device("cuda", self.device)])


@functools.cache
def _engines_stream(device: int, stream: int) -> Any:
    return torch.cuda.ExternalStream(stream, device=torch.device("cuda", device))  # type: ignore[no-untyped-call]


def place_of(tensors: Sequence[Tensor]) -> Place:
    """The one place of an operation's tensors."""
    if all(tensor.is_cpu for tensor in tensors):
        return HOST
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"The tensors of an operation must be on one device, but these are on {names}")
    (device,) = devices
    return GpuPlace(device.index) if device.type == "cuda" else HOST


def await_gpu(world: World, devices: Iterable[int]) -> None:
    """Wait for all that the current streams of these GPUs hold, and for what was launched beside them."""
    for device in devices:
        refuse_capture()
        world.let_wait(device, current_stream(device))
        torch.cuda.current_stream(device).synchronize()
