# SPDX-License-Identifier: Apache-2.0
"""torch's CPU tensors as the engine takes them for a GPU's, because the stand-in's memory is host memory too.

Only the classes that use torch.cuda are replaced. The backend is registered, and `begin` makes the default group.
"""

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from gpu import Gpu

import horovod.torch.distributed  # noqa: F401 - registers the backend
from horovod._engine import World
from horovod.torch.distributed import places
from horovod.torch.distributed.buffers import units_of
from horovod.torch.distributed.flight import Flight

Tensor = torch.Tensor
sharing = int(os.environ.get("RANKS_PER_GPU", "1"))
if "STANDIN_UUID_BY_RANK" in os.environ:
    os.environ["STANDIN_UUID"] = f"of {int(os.environ['HOROVOD_RANK']) // sharing}"
gpu = Gpu()
current = threading.local()  # .stream: the stand-in's current stream of this thread
on_cpu: set[int] = set()  # addresses of tensors that stay on the host


class StandinPlace(places.Place):
    def __init__(self) -> None:
        self.device = 0
        self.stream = getattr(current, "stream", 0)

    def launches_on(self, stream: int) -> None:
        self.stream = stream

    def order(self, world: World) -> None:
        world.let_wait(0, self.stream)

    @contextmanager
    def entered(self) -> Iterator[None]:
        gpu.synchronize(self.stream)  # torch runs its next operation at once, not on a stream
        yield

    def follow(self, world: World) -> None:
        reader = getattr(current, "stream", 0)
        world.let_wait(0, reader)
        gpu.synchronize(reader)

    def outlive(self, tensors: Iterable[Tensor]) -> None:
        gpu.synchronize(self.stream)

    def is_done(self) -> bool:
        try:
            gpu.call("cuStreamQuery", ctypes.c_void_p(self.stream))
        except RuntimeError:  # CUDA_ERROR_NOT_READY
            return False
        return True

    def complete_here(self) -> None:
        gpu.synchronize(self.stream)

    def take_output(self, world: World, handle: int, like: Tensor) -> Tensor:
        flat = like.new_empty(max(0, world.output_rows(handle, 0)) // units_of(like.dtype))
        if flat.numel():
            world.copy_output(handle, 0, flat.data_ptr(), self.stream)
        gpu.synchronize(self.stream)
        return flat

    def when_done(self) -> places.Place:
        return places.HOST


def place_of(tensors: Sequence[Tensor]) -> places.Place:
    host = not tensors or any(tensor.data_ptr() in on_cpu for tensor in tensors)
    return places.HOST if host else StandinPlace()


def keep_and_release(flight: Flight, followed: bool) -> None:
    """Keep the tensors: torch frees CPU tensors at once, but those of a GPU in the order of its streams."""
    kept.append(flight._keep)
    release(flight, followed)


kept: list[object] = []
release = Flight.release


def await_gpu(world: World, devices: Iterable[int]) -> None:
    for _ in devices:
        world.let_wait(0, getattr(current, "stream", 0))
        gpu.synchronize(getattr(current, "stream", 0))


def begin(timeout_s: float = 30) -> None:
    dist.init_process_group("horovod", timeout=timedelta(seconds=timeout_s))
    Flight.release = keep_and_release  # type: ignore[method-assign]
    places.place_of = place_of
    places.await_gpu = await_gpu
