# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin.py: the checks named on the command line. Each raises when it fails."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows the small floats by it
import numpy as np
from exchanges import check_exchanges
from gpu import Ask, Gpu, Hold, Tensor, restart_numbers, start, world
from numpy.typing import NDArray

import horovod.numpy as hvd
import horovod.numpy.mpi_ops as numpy_ops
from horovod._engine import EngineCall, EngineError, TensorLocation
from horovod.common.calls import ALLREDUCE, BROADCAST, REDUCESCATTER
from horovod.common.context import default_context
from horovod.common.dtypes import DTYPES, ID_BY_NAME
from horovod.common.process_sets import global_process_set
from horovod.common.rules import rows_of

AVERAGE, SUM, _, MIN, MAX, PRODUCT = range(6)
NUMPY = {SUM: np.add, AVERAGE: np.add, MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}
SLOT = 65536  # as set by the test

_rank = int(os.environ["HOROVOD_RANK"])
if _rank == 1 and "FAIL_AT_RANK_1" in os.environ:
    os.environ["STANDIN_FAIL"] = os.environ["FAIL_AT_RANK_1"]
if "STANDIN_UUID_BY_RANK" in os.environ:
    os.environ["STANDIN_UUID"] = f"of {_rank}"
# GPU of each rank, for example "0,0,1"; ranks with equal numbers share one.
GPUS = os.environ.get("STANDIN_GPUS", "").split(",")
if "STANDIN_GPUS" in os.environ:
    os.environ["STANDIN_UUID"] = f"GPU {GPUS[_rank]}"
if _rank and "DELAY_US_BUT_OF_RANK_0" in os.environ:
    os.environ["STANDIN_DELAY_US"] = os.environ["DELAY_US_BUT_OF_RANK_0"]
if "HOST_IDS" in os.environ:
    os.environ["NCCL_HOSTID"] = os.environ["HOST_IDS"].split(",")[_rank]
gpu = Gpu(_rank % 2 if "DEVICE_BY_RANK" in os.environ else 0)


def size() -> int:
    return hvd.size()


def rank() -> int:
    return hvd.rank()


def small(name: str, shape: tuple[int, ...], of_rank: int, seed: int = 0) -> NDArray[Any]:
    """Return values whose sums and products are exact in every type."""
    most = 2 if name == "bool" else 3
    return np.random.default_rng(1000 * seed + of_rank).integers(0, most, shape).astype(name)


def wild(name: str, shape: tuple[int, ...], of_rank: int, seed: int = 0) -> NDArray[Any]:
    """Return values that overflow, need rounding, or are NaN."""
    dice = np.random.default_rng(77 + 1000 * seed + of_rank)
    if name == "bool":
        return dice.integers(0, 2, shape).astype(bool)
    raw = dice.integers(0, 256, (int(np.prod(shape)) * np.dtype(name).itemsize,), np.uint8)
    return raw.view(name).reshape(shape)


def same_bits(got: NDArray[Any], wanted: NDArray[Any], what: object) -> None:
    """Check that both arrays have the same bits, where any NaN equals any other."""
    with np.errstate(all="ignore"):
        numbers = wanted == wanted
    equal = got.view(f"u{got.itemsize}") == wanted.view(f"u{wanted.itemsize}")
    nothing = ~numbers & ~(got == got)
    wrong = np.flatnonzero(~(equal | nothing))
    assert not len(wrong), (what, len(wrong), wrong[:5], wrong[-1], got.flat[wrong[:5]], wanted.flat[wrong[:5]])


def outcome(ask: Ask, like: NDArray[Any]) -> NDArray[Any]:
    """Return an empty output of the shape that this rank gets."""
    if ask.kind != REDUCESCATTER:
        return np.zeros_like(like)
    member = default_context.membership_of(ask.set)
    return np.zeros((rows_of(member.index, like.shape[0], member.size), *like.shape[1:]), like.dtype)


def expected(ask: Ask, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the result for small values of all members, reduced in the order of the members."""
    member = default_context.membership_of(ask.set)
    dtype = inputs[0].dtype
    if ask.kind == BROADCAST:
        return inputs[member.ranks.index(ask.root)]
    whole = (lambda it: np.trunc(it)) if np.issubdtype(dtype, np.integer) else (lambda it: it)
    values = [whole(one.astype(np.float64) * ask.prescale) for one in inputs]
    total = values[0]
    for one in values[1:]:
        total = NUMPY[ask.op](total, one)
    if dtype == np.bool_:
        total = total != 0 if ask.op in (SUM, MAX) else np.all(np.stack(inputs), axis=0)
    elif np.issubdtype(dtype, np.integer):
        total = whole(whole(total * ask.postscale) / (len(inputs) if ask.op == AVERAGE else 1))
    else:  # apply one factor, in the type in which the engine adds
        lane = np.float64 if dtype == np.float64 else np.float32
        total = total.astype(lane) * lane(ask.postscale / (len(inputs) if ask.op == AVERAGE else 1))
    if ask.kind == REDUCESCATTER:
        before = sum(rows_of(index, len(total), member.size) for index in range(member.index))
        total = total[before : before + rows_of(member.index, len(total), member.size)]
    return total.astype(dtype)


class Run:
    """One call on the device and the same call in host memory, started together with others."""

    def __init__(
        self, ask: Ask, arrays: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]] | None, in_place: bool = False,
        shift: int = 0, stream: int = 0,
    ) -> None:  # fmt: skip
        self.what = (ask, [(array.dtype.name, array.shape) for array in arrays], in_place, shift)
        self.wanted = wanted
        self.inputs = [Tensor(gpu, array, shift) for array in arrays]
        self.outputs = self.inputs if in_place else [Tensor(gpu, outcome(ask, array), shift) for array in arrays]
        self.host_inputs = [array.copy() for array in arrays]
        self.host_outputs = [outcome(ask, array) for array in arrays]
        targets = [it.address for it in self.outputs]
        sources = [(it.address, array) for it, array in zip(self.inputs, arrays, strict=True)]
        self.handles = [start(ask, sources, targets, gpu, stream)]
        sources = [(it.ctypes.data, it) for it in self.host_inputs]
        self.handles.append(start(ask, sources, [it.ctypes.data for it in self.host_outputs], None))

    def check(self) -> None:
        for handle in self.handles:
            world().finish(handle)
        world().let_wait(gpu.ordinal, 0)
        gpu.synchronize()
        for index, (got, host) in enumerate(zip(self.outputs, self.host_outputs, strict=True)):
            if self.wanted is not None:
                same_bits(got.array, self.wanted[index], ("NumPy", *self.what))
            same_bits(got.array, host, ("host", *self.what))
        for tensor in {id(it): it for it in [*self.inputs, *self.outputs]}.values():
            tensor.free()


def every_ask(name: str) -> list[Ask]:
    reductions = [Ask(ALLREDUCE, op) for op in (SUM, MIN, MAX, PRODUCT)]
    asks = [*reductions, Ask(BROADCAST, root=size() - 1), Ask(REDUCESCATTER, SUM)]
    if name != "bool":
        asks += [Ask(ALLREDUCE, AVERAGE), Ask(REDUCESCATTER, AVERAGE)]
        asks += [replace(it, prescale=0.5, postscale=2.0) for it in (asks[0], asks[-3])]
    return asks


def depends_on_order(ask: Ask, name: str) -> bool:
    """Return True if another order of additions than the host's, which some transports use, may give other bits."""
    return ask.op not in (MIN, MAX) and ask.kind != BROADCAST and name.startswith(("float", "bfloat"))


def check_operations() -> None:
    """Check every operation on every type, against NumPy and against the same call in host memory."""
    by_gpu = len(set(GPUS)) > 1
    for seed, (name, _, _) in enumerate(DTYPES):
        runs = []
        for ask in every_ask(name):
            shape = (7, 5) if ask.kind == REDUCESCATTER else (37,)
            values = [small(name, shape, of_rank, seed) for of_rank in range(size())]
            shift = seed % 3
            runs.append(Run(ask, [values[rank()]], [expected(ask, values)], shift=shift))
            if not (by_gpu and depends_on_order(ask, name)):
                runs.append(Run(ask, [wild(name, shape, rank(), seed)], None, shift=shift))
        for run in runs:
            run.check()


def check_groups() -> None:
    for ask in every_ask("float32"):
        shapes = [(4, 3), (size(),), (2, 9)] if ask.kind == REDUCESCATTER else [(4, 3), (0,), (1,), (1000,)]
        values = [
            [small("float32", shape, of_rank, seed) for seed, shape in enumerate(shapes)] for of_rank in range(size())
        ]
        wanted = [expected(ask, [values[of_rank][k] for of_rank in range(size())]) for k in range(len(shapes))]
        Run(ask, values[rank()], wanted).check()


def check_many_tensors() -> None:
    """Check a batch of more tensors than one launch takes, and tensors of several slots, also at odd offsets."""
    values = [[small("float32", (1 + k % 41,), of_rank, k) for k in range(300)] for of_rank in range(size())]
    wanted = [expected(Ask(ALLREDUCE), [values[of_rank][k] for of_rank in range(size())]) for k in range(300)]
    tensors = [Tensor(gpu, array, k % 5) for k, array in enumerate(values[rank()])]
    handles: list[int] = []
    locations = [
        TensorLocation(ID_BY_NAME["float32"], it.shape, it.address, it.address, device=gpu.ordinal) for it in tensors
    ]
    world().submit_many(0, [f"many.{k}" for k in range(300)], EngineCall(ALLREDUCE, SUM), locations, handles)
    world().finish_all(handles)
    world().let_wait(gpu.ordinal, 0)
    gpu.synchronize()
    for tensor, right in zip(tensors, wanted, strict=True):
        same_bits(tensor.array, right, "many")
        tensor.free()
    runs = []
    for shift in (0, 1):
        for ask in (Ask(ALLREDUCE), Ask(ALLREDUCE, prescale=0.5), Ask(BROADCAST, root=0), Ask(REDUCESCATTER)):
            large = [
                [small("int16", (SLOT * 5 // 2 + 3,), of_rank, 1), small("int16", (7, 3), of_rank, 2)]
                for of_rank in range(size())
            ]
            right = [expected(ask, [large[of_rank][k] for of_rank in range(size())]) for k in range(2)]
            in_place = shift == 0 and ask.kind != REDUCESCATTER
            runs.append(Run(ask, large[rank()], right, in_place, shift))
    for run in runs:
        run.check()


def extreme(name: str, shape: tuple[int, ...], of_rank: int) -> NDArray[Any]:
    """Return the largest, the smallest and random integers, nearly all sums of which overflow."""
    limits, dice = np.iinfo(name), np.random.default_rng(of_rank)
    values = dice.integers(limits.min, limits.max, shape, name, endpoint=True)
    kinds = np.random.default_rng(5).integers(0, 3, shape)  # equal on all ranks
    return np.where(kinds == 0, values, np.where(kinds == 1, np.array(limits.max, name), np.array(limits.min, name)))


def exact_average(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    total = sum(one.astype(np.int64) for one in values)
    return (np.sign(total) * (np.abs(total) // len(values))).astype(values[0].dtype)


def check_averages() -> None:
    """Check that averages of integers under 64 bits are exact: in several slots, fused, unaligned, with factors."""
    for shift, name in enumerate(("uint8", "int8", "uint16", "int16", "uint32", "int32")):
        runs = []
        for ask in (Ask(ALLREDUCE, AVERAGE), Ask(REDUCESCATTER, AVERAGE)):
            for shapes in ([(3,)], [(SLOT * 3 // 2 + 5,), (7, 3), (1000,)]):
                values = [[extreme(name, shape, of_rank) for shape in shapes] for of_rank in range(size())]
                wanted = []
                for k in range(len(shapes)):
                    exact = exact_average([values[of_rank][k] for of_rank in range(size())])
                    if ask.kind == REDUCESCATTER:
                        exact = np.array_split(exact, size())[rank()]
                    wanted.append(exact)
                runs.append(Run(ask, values[rank()], wanted, shift=shift % 3))
                scaled = replace(ask, prescale=0.5, postscale=2.0)
                # Equal to the result on the host.
                runs.append(Run(scaled, values[rank()], None, in_place=ask.kind == ALLREDUCE))
        for run in runs:
            run.check()


def check_order() -> None:
    """Check that an operation waits for the caller's stream, and that later work of the stream sees the result."""
    streams = [gpu.stream(), gpu.stream(), 0]
    count = 5000
    for turn in range(6):
        stream = streams[turn % 3]
        tensor, result = Tensor(gpu, np.full(count, -1.0, np.float32)), Tensor(gpu, np.zeros(count, np.float32))
        late, read = np.full(count, rank() + 1.0, np.float32), np.zeros(count, np.float32)
        gpu.copy(tensor.address, late.ctypes.data, late.nbytes, stream, delay_s=0.02)
        ask = Ask(ALLREDUCE) if turn < 3 else Ask(BROADCAST, root=size() - 1)
        handle = start(ask, [(tensor.address, late)], [result.address], gpu, stream)
        world().finish(handle)
        world().let_wait(gpu.ordinal, stream)
        # Once its stream waits for the result, the caller may overwrite the tensors.
        garbage = np.full(count, 1e30, np.float32)
        gpu.copy(read.ctypes.data, result.address, read.nbytes, stream)
        gpu.copy(tensor.address, garbage.ctypes.data, garbage.nbytes, stream)
        gpu.copy(result.address, garbage.ctypes.data, garbage.nbytes, stream)
        gpu.synchronize(stream)
        assert np.all(read == (size() * (size() + 1) // 2 if turn < 3 else size())), (turn, read[:5])
        tensor.free()
        result.free()
    for stream in streams[:2]:
        gpu.destroy(stream)


def check_asynchrony() -> None:
    """Check that starting an operation does not wait for the caller's stream, even if that is busy for long."""
    stream = gpu.stream()
    tensor = Tensor(gpu, np.zeros(10, np.float32))
    value = np.full(10, 1.0, np.float32)
    hold = Hold(gpu, stream)
    gpu.copy(tensor.address, value.ctypes.data, value.nbytes, stream, delay_s=0.5)
    handle = start(Ask(ALLREDUCE), [(tensor.address, value)], [tensor.address], gpu, stream)
    assert not gpu.is_idle(stream)
    hold.end()
    world().finish(handle)
    world().let_wait(gpu.ordinal, stream)
    gpu.synchronize(stream)
    assert np.all(tensor.array == size()), tensor.array
    tensor.free()
    gpu.destroy(stream)


def check_sets() -> None:
    """Run operations in two sets that overlap, at the same time."""
    ranks = [list(range(size())), [0]] if size() < 3 else [list(range(size() - 1)), list(range(1, size()))]
    sets = [global_process_set if len(it) == size() else hvd.add_process_set(it) for it in ranks]
    runs = []
    for turn in range(8):
        for members, process_set in zip(ranks, sets, strict=True):
            if rank() in members:
                ask = Ask(ALLREDUCE, set=process_set) if turn % 2 else Ask(BROADCAST, root=members[-1], set=process_set)
                values = [small("int32", (SLOT // 8 * turn + 1,), of_rank, turn) for of_rank in members]
                runs.append(Run(ask, [values[members.index(rank())]], [expected(ask, values)]))
    for run in runs:
        run.check()
    for process_set in (it for it in sets if it is not global_process_set):
        assert hvd.remove_process_set(process_set)


def check_join(of_rank: int = 0) -> None:
    """Let one rank join, possibly before it ever had data. It takes part with zeros."""
    value = np.full(SLOT // 2 + 3, rank() + 1, np.int32)
    wanted = np.full(SLOT // 2 + 3, size() * (size() + 1) // 2 - 1 - of_rank, np.int32)
    if rank() != of_rank:
        runs = [Run(Ask(ALLREDUCE), [value[:count].copy()], [wanted[:count]]) for count in (len(value), 5)]
        runs.append(Run(Ask(ALLREDUCE), [value[:3].copy(), value[:900].copy()], [wanted[:3], wanted[:900]]))
        for name in ("int8", "int32"):  # the zeros count in an average too
            values = [extreme(name, value.shape, other) * (other != of_rank) for other in range(size())]
            exact = exact_average(values)
            runs += [
                Run(Ask(ALLREDUCE, AVERAGE), [values[rank()][:count].copy()], [exact[:count]])
                for count in (len(value), 5)
            ]
        for run in runs:
            run.check()
    numpy_ops._collectives.join(gpu.ordinal)  # with the device, as torch's join does
    restart_numbers()


CHECKS = {
    "operations": check_operations,
    "groups": check_groups,
    "many": check_many_tensors,
    "averages": check_averages,
    "order": check_order,
    "asynchrony": check_asynchrony,
    "sets": check_sets,
    "join": check_join,
    "last joins": lambda: check_join(size() - 1),
    "exchanges": lambda: check_exchanges(gpu, SLOT),
}


def all_checks(names: Sequence[str], transport: str) -> None:
    """Run the checks one after the other in one world. At the end it leaves nothing behind."""
    before = gpu.live()
    hvd.init()
    for name in names:
        CHECKS[name]()
    gpu.wait_for("mapped", size() - 1 if transport == "ipc" else 0)
    hvd.shutdown()
    assert gpu.live() == before, (gpu.live(), before)


def run_results(transport: str, names: str) -> None:
    all_checks(names.split(","), transport)
    # Run another world, in which rank 0 joins before it has used a device.
    all_checks(["join", "order"], transport)
    print("all checks passed", flush=True)


def run_refused() -> None:
    """Check that a transport chosen by name fails with the reason why it does not work."""
    hvd.init()
    tensor = Tensor(gpu, np.ones(3, np.float32))
    try:
        world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu))
    except EngineError as error:
        print("refused:", error.args[1], flush=True)
    hvd.shutdown()


def run_timeline(folder: str) -> None:
    """Start the GPUs of all ranks at the same time, a second after the host has launched the operation."""
    hvd.init()
    world().start_timeline(f"{folder}/{rank()}.json".encode())
    stream = gpu.stream()
    for name, count in (("large", SLOT), ("small", 8)):
        tensor = Tensor(gpu, np.zeros(count, np.float32))
        value = np.ones(count, np.float32)
        hold = Hold(gpu, stream, f"{folder}/{name}")
        gpu.copy(tensor.address, value.ctypes.data, value.nbytes, stream, delay_s=1.0)
        handle = world().submit(
            0, name, EngineCall(ALLREDUCE),
            TensorLocation(
                ID_BY_NAME["float32"], (count,), tensor.address, tensor.address, device=gpu.ordinal, stream=stream
            ),
        )  # fmt: skip
        if name == "large":  # "large" finishes when it is launched, while "small" may have to wait for the GPU
            world().finish(handle)
        hvd.barrier()
        if rank() == 0:
            hold.end()
        if name == "small":
            world().finish(handle)
            world().let_wait(gpu.ordinal, stream)
            gpu.synchronize(stream)
    world().stop_timeline()
    hvd.shutdown()
    print("timeline written", flush=True)


def run_departure() -> None:
    """Let rank 0 leave as soon as its own work is done, while the others have yet to read its data."""
    hvd.init()
    values = [small("int32", (SLOT // 4,), of_rank) for of_rank in range(size())]
    runs = [Run(Ask(ALLREDUCE), [values[rank()]], [expected(Ask(ALLREDUCE), values)]) for _ in range(3)]
    for run in runs:
        run.check()
    hvd.shutdown()
    print("departed", flush=True)


def run_fault(fault: str) -> None:
    """End rank 1. The others get an error and shut down."""
    before = gpu.live()
    hvd.init()
    tensor, stream = Tensor(gpu, np.ones(SLOT, np.float32)), gpu.stream()

    def allreduce() -> None:
        world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu, stream))

    text = ""
    try:
        for _ in range(3):  # rank 1 may end before the other ranks have finished these
            allreduce()
        if rank() == 1:
            meet_end(fault, tensor, stream, allreduce)
        for _ in range(100):
            allreduce()
    except EngineError as error:
        text = str(error.args[1])
    try:
        world().let_wait(gpu.ordinal, stream)
        text = "what was left on the device is not to be trusted, and nobody says so"
    except EngineError:
        pass
    began = time.monotonic()
    hvd.shutdown()
    took = time.monotonic() - began
    left = {kind: now - before[kind] for kind, now in gpu.live().items() if now != before[kind]}
    print(f"shut down in {took:.1f} s: {text}; left {left}", flush=True)


def meet_end(fault: str, tensor: Tensor, stream: int, allreduce: Callable[[], None]) -> None:
    if fault == "kernel":
        gpu.fail("cuLaunchKernel=700@1")
        return
    world().let_wait(gpu.ordinal, stream)
    gpu.synchronize(stream)
    if fault == "killed at work":  # the streams of the others wait for data that never comes
        gpu.copy(tensor.address, tensor.address, 4, stream, delay_s=100)
        allreduce()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "results": run_results,
        "refused": run_refused,
        "timeline": run_timeline,
        "departure": run_departure,
        "fault": run_fault,
    }
    programs[sys.argv[1]](*sys.argv[2:])
