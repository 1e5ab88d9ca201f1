# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_regions.py: allreduces in device memory that all ranks map."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows the small floats by it
import numpy as np
from gpu import Ask, Gpu, Tensor, array_at, restart_numbers, start, world
from numpy.typing import NDArray

import horovod.numpy as hvd
from horovod._engine import EngineError, Region
from horovod.common.calls import ALLREDUCE
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet, global_process_set

AVERAGE, SUM, _, MIN, MAX, PRODUCT = range(6)
if "DELAYS_US" in os.environ:  # delays by rank
    os.environ["STANDIN_DELAY_US"] = os.environ["DELAYS_US"].split(",")[int(os.environ["HOROVOD_RANK"])]
gpu = Gpu(int(os.environ["HOROVOD_RANK"]) % 2 if "DEVICE_BY_RANK" in os.environ else 0)
COUNTS = (5, 16, 70_000, 1, 1024, 333)  # elements of the tensors of one step


class Placed:
    """An array in a region."""

    def __init__(self, region: Region, offset: int, like: NDArray[Any]) -> None:
        self.region, self.address = region, region.address + offset
        self.shape, self.dtype, self.nbytes = like.shape, like.dtype, like.nbytes

    @property
    def array(self) -> NDArray[Any]:
        return array_at(self.address, self.shape, self.dtype)


def direct_batches() -> int:
    return int(json.loads(world().describe())["direct_batches"])


def meet(process_set: ProcessSet = global_process_set) -> None:
    """Run the first operation on the device, in which the members find out that they share it."""
    tensor = Tensor(gpu, np.ones(100_000, np.float32))
    world().finish(start(Ask(ALLREDUCE, set=process_set), [(tensor.address, tensor.array)], [tensor.address], gpu))
    world().let_wait(gpu.ordinal, 0)
    gpu.synchronize()
    assert np.all(tensor.array == len(process_set.ranks or ()))
    tensor.free()


def allocate(nbytes: int, process_set: ProcessSet = global_process_set) -> Region:
    region = world().allocate_region(default_context.membership_of(process_set).id, gpu.ordinal, nbytes)
    assert region is not None
    return region


def arrays_of(dtype: str, of_rank: int, seed: int = 0) -> list[NDArray[Any]]:
    dice = np.random.default_rng(1000 * seed + of_rank)
    return [(dice.standard_normal(count) * 50).astype(dtype) for count in COUNTS]


def places_of(region: Region, arrays: Sequence[NDArray[Any]], shift: int = 0) -> list[Placed]:
    places, offset = [], shift
    for array in arrays:
        places.append(Placed(region, offset, array))
        offset += -(-array.nbytes // 64) * 64
    return places


def same(got: NDArray[Any], wanted: NDArray[Any], what: object) -> None:
    assert got.tobytes() == wanted.tobytes(), (what, got[:3], wanted[:3])


def reduce_and_check(ask: Ask, tensors: Sequence[Any], arrays: Sequence[NDArray[Any]], stream: int = 0) -> None:
    """Reduce tensors whose contents arrive late, and check that the reduction in host memory gives the same bits."""
    for tensor, array in zip(tensors, arrays, strict=True):
        gpu.copy(tensor.address, array.ctypes.data, array.nbytes, stream, delay_s=0.001)
    sources = [(it.address, array) for it, array in zip(tensors, arrays, strict=True)]
    handle = start(ask, sources, [it.address for it in tensors], gpu, stream)
    host = [array.copy() for array in arrays]
    on_host = start(ask, [(it.ctypes.data, it) for it in host], [it.ctypes.data for it in host], None)
    world().finish(handle)
    world().let_wait(gpu.ordinal, stream)
    gpu.synchronize(stream)
    world().finish(on_host)
    for tensor, wanted in zip(tensors, host, strict=True):
        same(tensor.array, wanted, (ask, wanted.dtype, wanted.shape))


def check_bits() -> None:
    """Check every type and factor, in place: each call is one batch and reduced without a copy."""
    streams = [0, gpu.stream(), gpu.stream()]
    asks = [Ask(ALLREDUCE, SUM), Ask(ALLREDUCE, AVERAGE), Ask(ALLREDUCE, MAX), Ask(ALLREDUCE, SUM, 0.3, 1.7)]
    asks.append(Ask(ALLREDUCE, AVERAGE, prescale=0.25))
    extra = allocate(1) if hvd.rank() == 0 else None  # makes the numbers of regions differ between ranks
    region = allocate(4 << 20)
    before, runs = direct_batches(), 0
    for dtype in ("float32", "bfloat16", "float64", "int32", "float16"):
        for ask in asks:
            if dtype == "int32" and ask.prescale != 1:
                continue
            arrays = arrays_of(dtype, hvd.rank(), runs)
            reduce_and_check(ask, places_of(region, arrays), arrays, streams[runs % 3])
            runs += 1
    assert direct_batches() == before + runs, (before, direct_batches(), runs)
    for stream in streams[1:]:
        gpu.destroy(stream)
    del extra


def check_in_a_row() -> None:
    """Start many operations on two streams without waiting between them, each adding up the previous results."""
    region, streams = allocate(1 << 20), [gpu.stream(), gpu.stream()]
    tensors = [Placed(region, at << 18, np.zeros(5000, np.int64)) for at in range(4)]
    values = [np.full(5000, hvd.rank() + at, np.int64) for at in range(4)]
    for at, (tensor, value) in enumerate(zip(tensors, values, strict=True)):
        gpu.copy(tensor.address, value.ctypes.data, value.nbytes, streams[at % 2], delay_s=0.01)
    handles = []
    for _ in range(6):
        for at, tensor in enumerate(tensors):
            ask = Ask(ALLREDUCE, SUM)
            handle = start(ask, [(tensor.address, values[at])], [tensor.address], gpu, streams[at % 2])
            world().finish(handle)
            handles.append(handle)
    for stream in streams:
        world().let_wait(gpu.ordinal, stream)
        gpu.synchronize(stream)
        gpu.destroy(stream)
    ranks = range(hvd.size())
    for at, tensor in enumerate(tensors):
        assert np.all(tensor.array == sum(rank + at for rank in ranks) * hvd.size() ** 5), (at, tensor.array[:3])


def check_unlike() -> None:
    """Check tensors that lie elsewhere on one rank: at another offset, unaligned, or in no region at all."""
    region = allocate(4 << 20)
    arrays = arrays_of("float32", hvd.rank())
    before = direct_batches()
    odd = hvd.rank() == hvd.size() - 1
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(region, arrays, 4096 if odd else 0), arrays)
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(region, arrays, 4 if odd else 0), arrays)
    elsewhere = [Tensor(gpu, array) for array in arrays]
    reduce_and_check(Ask(ALLREDUCE, SUM), elsewhere if odd else places_of(region, arrays), arrays)
    for tensor in elsewhere:
        tensor.free()
    assert direct_batches() == before, (before, direct_batches())
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(region, arrays), arrays)
    assert direct_batches() == before + 1


def check_set() -> None:
    """Check that the members of another set negotiate separately, also for regions that other sets know."""
    some = hvd.add_process_set(range(hvd.size())[:2])
    whole = allocate(1 << 20)
    if some.included():
        assert world().allocate_region(default_context.membership_of(some).id, gpu.ordinal, 1) is None
        meet(some)
        before = direct_batches()
        arrays = arrays_of("float32", hvd.rank())
        for region in (allocate(1 << 20, some), whole):
            reduce_and_check(Ask(ALLREDUCE, AVERAGE, set=some), places_of(region, arrays), arrays)
        assert direct_batches() == before + 2
    hvd.barrier()
    assert hvd.remove_process_set(some)


def check_join() -> None:
    """Let rank 0 join. The others' tensors are summed with zeros."""
    region = allocate(1 << 20)
    tensor = Placed(region, 0, np.zeros(50_000, np.float32))
    tensor.array[...] = 1
    hvd.barrier()
    before = direct_batches()
    if hvd.rank():
        world().finish(start(Ask(ALLREDUCE, SUM), [(tensor.address, tensor.array)], [tensor.address], gpu))
        world().let_wait(gpu.ordinal, 0)
        gpu.synchronize()
        assert np.all(tensor.array == hvd.size() - 1), tensor.array[:3]
    assert direct_batches() == before
    hvd.join()
    restart_numbers()


def check_reuse() -> None:
    """Check that freed memory is used again, and that other ranks still have it mapped."""
    arrays = arrays_of("float32", hvd.rank())
    memory = gpu.live()
    first = allocate(64 << 20)
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(first, arrays), arrays)
    used = gpu.live()
    assert used["memory"] == memory["memory"] + 1, (memory, used)
    address = first.address
    del first
    second = allocate(64 << 20)
    assert second.address == address
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(second, arrays), arrays)
    assert gpu.live()["mapped"] == used["mapped"], (gpu.live(), used)
    gpu.fail("cuMemAlloc_v2=2")
    text = "memory out of nothing"
    try:
        allocate(256 << 20)
    except EngineError as error:
        text = str(error.args[1])
    gpu.fail("cuMemAlloc_v2=0")
    assert "could not allocate memory of GPU 0" in text, text
    reduce_and_check(Ask(ALLREDUCE, SUM), places_of(second, arrays), arrays)


CHECKS: dict[str, Callable[[], None]] = {
    "bits": check_bits,
    "row": check_in_a_row,
    "unlike": check_unlike,
    "set": check_set,
    "reuse": check_reuse,
    "join": check_join,
}


def run_results(names: str) -> None:
    """Run the checks in two worlds. Tensors of the first one stay valid, and count as ordinary ones in the second."""
    before = gpu.live()
    kept: list[Placed] = []
    for turn in range(2):
        hvd.init()
        arrays = arrays_of("float32", hvd.rank(), turn)
        assert world().allocate_region(0, gpu.ordinal, 100) is None
        meet()
        if kept:
            reduce_and_check(Ask(ALLREDUCE, SUM), kept, arrays)
            assert direct_batches() == 0
        for name in names.split(",") if turn == 0 else ["row"]:
            CHECKS[name]()
        kept = places_of(allocate(1 << 20), arrays)
        reduce_and_check(Ask(ALLREDUCE, SUM), kept, arrays)
        wanted = [it.array.copy() for it in kept]
        hvd.shutdown()
        restart_numbers()
        for tensor, value in zip(kept, wanted, strict=True):
            same(tensor.array, value, "after the end")
        left = {kind: now - before[kind] for kind, now in gpu.live().items() if now != before[kind]}
        assert left == {"memory": 1, "contexts": 1}, left
    kept.clear()
    del tensor
    assert gpu.live() == before, (gpu.live(), before)
    print("all checks passed", flush=True)


def run_refused() -> None:
    """Check that all ranks copy, with the same results, if one rank cannot map the others' memory."""
    hvd.init()
    meet()
    if hvd.rank() == 1:
        gpu.fail("cuIpcOpenMemHandle_v2=201")
    region, arrays = allocate(1 << 20), arrays_of("float32", hvd.rank())
    for _ in range(2):
        reduce_and_check(Ask(ALLREDUCE, SUM), places_of(region, arrays), arrays)
    assert direct_batches() == 0
    assert world().allocate_region(0, gpu.ordinal, 100) is None  # no region is given, because ranks could not use it
    del region
    hvd.shutdown()
    print("all checks passed", flush=True)


def run_apart() -> None:
    """Check that ranks get no region if they do not share a device or its memory."""
    hvd.init()
    meet()
    assert world().allocate_region(0, gpu.ordinal, 100) is None
    hvd.shutdown()
    print("all checks passed", flush=True)


def run_departure() -> None:
    """Leave as soon as the work is launched. Work in flight finishes before its memory is freed."""
    before = gpu.live()
    hvd.init()
    meet()
    tensor, rounds = Placed(allocate(1 << 20), 0, np.zeros(100_000, np.int64)), 3
    value = np.full(100_000, hvd.rank() + 1, np.int64)
    gpu.copy(tensor.address, value.ctypes.data, value.nbytes, 0, delay_s=0.05 * hvd.rank())
    for _ in range(rounds):
        world().finish(start(Ask(ALLREDUCE, SUM), [(tensor.address, value)], [tensor.address], gpu))
    size = hvd.size()
    hvd.shutdown()
    assert np.all(tensor.array == size * (size + 1) // 2 * size ** (rounds - 1)), tensor.array[:3]
    del tensor
    assert gpu.live() == before, (gpu.live(), before)
    print("all checks passed", flush=True)


def run_fault(victim: str, working: str) -> None:
    """Kill a rank while the streams of others wait for it. The others get an error and shut down."""
    before, stream = gpu.live(), gpu.stream()
    hvd.init()
    text = allreduce_until_lost(int(victim), working, stream)
    began = time.monotonic()
    hvd.shutdown()
    took = time.monotonic() - began
    gpu.synchronize(stream)
    gpu.destroy(stream)
    left = {kind: now - before[kind] for kind, now in gpu.live().items() if now != before[kind]}
    print(f"shut down in {took:.1f} s: {text}; left {left}", flush=True)


def allreduce_until_lost(victim: int, working: str, stream: int) -> str:
    """Reduce until a rank is lost, and return the error text of the others."""
    meet()
    tensor = Placed(allocate(1 << 20), 0, np.ones(100_000, np.float32))

    def allreduce() -> None:
        world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu, stream))

    text = ""
    try:
        for _ in range(3):  # the victim may be killed before the other ranks have finished these
            allreduce()
        if hvd.rank() == victim:
            world().let_wait(gpu.ordinal, stream)
            gpu.synchronize(stream)
            if working == "at work":
                gpu.copy(tensor.address, tensor.address, 4, stream, delay_s=100)
                allreduce()
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(100):
            allreduce()
    except EngineError as error:
        text = str(error.args[1])
    try:
        world().allocate_region(0, gpu.ordinal, 100)
        text = "a world that is over gives memory"
    except EngineError:
        pass
    return text


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "results": run_results,
        "refused": run_refused,
        "apart": run_apart,
        "departure": run_departure,
        "fault": run_fault,
    }
    programs[sys.argv[1]](*sys.argv[2:])
