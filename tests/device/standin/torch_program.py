# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_standin_distributed.py runs: torch.distributed on tensors that the engine takes for a GPU's.

They are torch's CPU tensors; the stand-in's memory is the host's too. Only places, which know torch.cuda, are others.
"""

import ctypes
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from gpu import Gpu

import horovod.torch.distributed  # noqa: F401 - registers the backend
from horovod._engine import World
from horovod.torch.distributed import places
from horovod.torch.distributed.buffers import units_of
from horovod.torch.distributed.flight import Flight

sys.path.insert(0, str(Path(__file__).parents[1]))
from distributed_checks import Checks, all_gather_single, same

Tensor = torch.Tensor
gpu = Gpu()
current = threading.local()  # .stream: the stand-in's, of this thread
on_cpu: set[int] = set()  # addresses of tensors that stay the host's


class Copies:
    """The event behind a copy that is made when somebody waits for it."""

    def __init__(self, stream: int, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._stream, self._pairs = stream, pairs

    def synchronize(self) -> None:
        gpu.synchronize(self._stream)
        for to, source in self._pairs:
            to.copy_(source.detach())


class StandinPlace(places.Place):
    def __init__(self) -> None:
        self.device = 0
        self.stream = getattr(current, "stream", 0)

    def order(self, world: World) -> None:
        world.let_wait(0, self.stream)

    @contextmanager
    def entered(self) -> Iterator[None]:
        gpu.synchronize(self.stream)  # what torch does here is done at once
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

    def host_memory(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 99)

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Copies]:
        copies = [self.host_memory(tensor) for tensor in tensors]
        return copies, Copies(self.stream, list(zip(copies, tensors, strict=True)))


def place_of(tensors: Sequence[Tensor]) -> places.Place:
    host = not tensors or any(tensor.data_ptr() in on_cpu for tensor in tensors)
    return places.HOST if host else StandinPlace()


def check_order() -> None:
    """The input is as its stream leaves it, and who waits on another stream comes after the operation."""
    rank, size = dist.get_rank(), dist.get_world_size()
    streams = [gpu.stream(), gpu.stream()]
    for turn in range(6):
        count = (100, 50_000)[turn % 2]
        tensor, late = torch.full((count,), -1.0), torch.full((count,), float(rank + turn))
        current.stream = streams[turn % 2]
        gpu.copy(tensor.data_ptr(), late.data_ptr(), late.nbytes, current.stream, delay_s=0.02)
        gathered = torch.zeros(size * count)
        works = [
            dist.all_reduce(tensor, async_op=True),
            all_gather_single(gathered, late.clone(), async_op=True),
        ]
        current.stream = streams[(turn + 1) % 2]  # another stream waits
        for work in works:
            work.wait()
        same(tensor, torch.full((count,), float(sum(other + turn for other in range(size)))))
        same(gathered, torch.arange(float(size)).add(turn).repeat_interleave(count))
    current.stream = 0
    for stream in streams:
        gpu.synchronize(stream)
        gpu.destroy(stream)


def check_asking() -> None:
    """Who asks instead of waiting hears when the device is done, not when the work is launched."""
    stream = current.stream = gpu.stream()
    tensor, late = torch.zeros(50_000), torch.ones(50_000)
    dist.all_reduce(tensor)
    gpu.copy(tensor.data_ptr(), late.data_ptr(), late.nbytes, stream, delay_s=0.4)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    same(tensor, torch.full((50_000,), float(dist.get_world_size())))
    current.stream = 0
    gpu.destroy(stream)


def keep_and_release(flight: Flight, followed: bool) -> None:
    """torch's CPU tensors give their memory back at once, those of a GPU in the order of its streams."""
    kept.append(flight._keep)
    release(flight, followed)


kept: list[object] = []
release, Flight.release = Flight.release, keep_and_release  # type: ignore[method-assign]
dist.init_process_group("horovod", timeout=timedelta(seconds=30))
places.place_of = place_of
places.await_gpu = lambda devices: [gpu.synchronize(getattr(current, "stream", 0)) for _ in devices]  # type: ignore[assignment]
checks = Checks(torch.device("cpu"), large=40_000)
checks.all()
check_order()
check_asking()
dist.destroy_process_group()
print("all checks passed", flush=True)
