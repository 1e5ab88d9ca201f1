# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_nccl.py. Every check raises when it fails."""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import program
from gpu import Ask, Tensor, start, world
from nccl_counts import counted
from program import CHECKS, GPUS, gpu, rank, size
from signs import Signs

import horovod.numpy as hvd
from horovod._engine import EngineCall, EngineError, TensorLocation
from horovod.common.calls import ALLREDUCE
from horovod.common.dtypes import ID_BY_NAME
from horovod.common.process_sets import ProcessSet, global_process_set

if rank_1 := os.environ.get("NCCL_VERSION_AT_RANK_1"):
    os.environ["STANDIN_NCCL_VERSION"] = rank_1 if os.environ["HOROVOD_RANK"] == "1" else "22809"
_ALONE = ("STANDIN_NCCL_ERROR", "STANDIN_NCCL_REFUSE", "HOROVOD_DETERMINISTIC", "HOROVOD_GPU_TRANSPORT",
          "HOROVOD_GPU_STAGED_BYTES", "HOROVOD_GPU_SLOT_BYTES")  # fmt: skip
for name in _ALONE:
    if (value := os.environ.get(f"{name}_AT_RANK_1")) and os.environ["HOROVOD_RANK"] == "1":
        os.environ[name] = value


def wait_for_communicators(count: int) -> None:
    """Wait until `count` communicators are left, because a thread of the engine ends that of a removed process set."""
    until = time.monotonic() + 30
    while counted("live") != count and time.monotonic() < until:
        time.sleep(0.001)
    assert counted("live") == count, (count, counted("live"))


def sharing() -> list[int]:
    """Return the ranks of this rank's GPU, the first of which leads there."""
    return [rank()] if len(GPUS) < size() else [it for it in range(size()) if GPUS[it] == GPUS[rank()]]


def some_share() -> bool:
    """Return True if the stand-in gives some ranks the same GPU."""
    return len(set(GPUS)) < size() if len(GPUS) == size() else "STANDIN_UUID_BY_RANK" not in os.environ


def run_results(names: str) -> None:
    """Run the checks one after the other in one world and some in a second one. Neither leaves anything behind."""
    before = gpu.live()
    for checks in (names.split(","), ["join", "order"]):
        launches = counted("launches")
        hvd.init()
        assert world().shares_gpus(0) == -1  # unknown before the first operation
        for name in checks:
            CHECKS[name]()
        assert world().shares_gpus(0) == some_share()
        leads = sharing()[0] == rank()
        assert counted("launches") > launches or not leads
        gpu.wait_for("mapped", len(sharing()) - 1)
        wait_for_communicators(int(leads))
        hvd.shutdown()
        assert counted("live") == 0
        assert gpu.live() == before, (gpu.live(), before)
    print("all checks passed", flush=True)


def run_otherwise(names: str) -> None:
    """Run the checks where NCCL cannot be used, or not for all operations."""
    hvd.init()
    for name in names.split(","):
        CHECKS[name]()
    shared = world().shares_gpus(0)
    hvd.shutdown()
    print("all checks passed, launches:", counted("launches"), flush=True)
    print("GPUs are shared:", shared, flush=True)


def run_joining() -> None:
    """Let each rank in turn join while the others continue with NCCL, without using other ranks' GPUs."""
    hvd.init()
    CHECKS["order"]()
    contexts = gpu.live()["contexts"]
    for one in range(size()):
        launches = counted("launches")
        program.check_join(one)
        assert counted("launches") > launches, one
        assert gpu.live()["contexts"] == contexts, (one, gpu.live())
    hvd.shutdown()
    print("all have joined", flush=True)


def run_factors() -> None:
    """Use a different factor in every step, as dynamic loss scaling does."""
    hvd.init()
    tensor = Tensor(gpu, np.ones(50, np.float32))
    for turn in range(300):
        factor = 1.0 + turn / 128
        tensor.array[...] = 1.0
        ask = Ask(ALLREDUCE, prescale=factor)
        world().finish(start(ask, [(tensor.address, tensor.array)], [tensor.address], gpu))
        world().let_wait(gpu.ordinal, 0)
        gpu.synchronize()
        assert np.all(tensor.array == np.float32(size() * factor)), (turn, tensor.array[:3])
    assert 0 < counted("factors") <= 64, counted("factors")
    hvd.shutdown()
    assert counted("factors") == 0
    print("all factors were right", flush=True)


def run_refused() -> None:
    program.run_refused()


class Order:
    """Operations of sets that overlap, which each rank submits in its own order."""

    def __init__(self, sets: list[ProcessSet | Any], dice: random.Random) -> None:
        self._sets, self._dice = sets, dice
        self._streams = [gpu.stream(), gpu.stream(), 0]
        self._held: list[tuple[int, Tensor, int]] = []

    def submit(self, turn: int) -> None:
        mine = [(index, members, chosen) for index, (members, chosen) in enumerate(self._sets) if rank() in members]
        asked = [(index, members, chosen, k) for index, members, chosen in mine for k in range(4)]
        self._dice.shuffle(asked)
        for index, members, chosen, k in asked:
            tensor = Tensor(gpu, np.full(1 + 700 * k, rank() + 1, np.int32))
            identity = 0 if chosen is global_process_set else chosen.process_set_id
            location = TensorLocation(
                ID_BY_NAME["int32"], tensor.shape, tensor.address, tensor.address, device=gpu.ordinal,
                stream=self._dice.choice(self._streams),
            )  # fmt: skip
            handle = world().submit(identity, f"order.{index}.{turn}.{k}", EngineCall(ALLREDUCE), location)
            self._held.append((handle, tensor, sum(member + 1 for member in members)))
            if self._dice.random() < 0.2:
                time.sleep(self._dice.random() / 1000)

    def check(self) -> None:
        for handle, _, _ in self._held:
            world().finish(handle)
        for stream in self._streams:
            world().let_wait(gpu.ordinal, stream)
            gpu.synchronize(stream)
        for _, tensor, wanted in self._held:
            assert np.all(tensor.array == wanted), (tensor.array[:5], wanted)
            tensor.free()
        self._held.clear()

    def close(self) -> None:
        for stream in self._streams[:2]:
            gpu.destroy(stream)


def run_orders(seed: str) -> None:
    before = gpu.live()
    hvd.init()
    everybody = list(range(size()))
    groups = [everybody, everybody[:-1], everybody[1:], [0, size() - 1], everybody[1:-1]]
    if len(set(GPUS)) > 1:
        # This set uses a GPU that other sets use too, but lacks the rank that leads there.
        groups.append([0, *everybody[2:]])
    sets = [(it, global_process_set if it is everybody else hvd.add_process_set(it)) for it in groups if len(it) > 1]
    order = Order(sets, random.Random(1000 * int(seed) + rank()))
    for turn in range(12):
        order.submit(turn)
        order.check()
    order.close()
    for _, chosen in sets[1:]:
        hvd.remove_process_set(chosen)
    hvd.shutdown()
    assert counted("live") == 0
    assert gpu.live() == before, (gpu.live(), before)
    print("all in order", flush=True)


def run_fault(fault: str) -> None:
    """End rank 1, or make it fail in another way. The others get an error and shut down."""
    if fault == "frozen":
        run_frozen()
    elif fault == "killed in sets":
        run_killed_in_sets()
    else:
        program.run_fault(fault)
    print(f"communicators left: {counted('live')}", flush=True)


def run_frozen() -> None:
    hvd.init()
    tensor, stream = Tensor(gpu, np.ones(5000, np.float32)), gpu.stream()

    def allreduce() -> None:
        world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu, stream))

    allreduce()
    hvd.barrier()  # all ranks have finished the first allreduce
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began = time.monotonic()
    try:
        while True:
            allreduce()
    except EngineError as error:
        print(f"raised after {time.monotonic() - began:.1f} s: {error.args[1]}", flush=True)
    gpu.synchronize(stream)  # no work on the device waits any longer
    hvd.shutdown()


def run_killed_in_sets() -> None:
    """Kill rank 1 while the other devices have queued operations of several sets."""
    before = gpu.live()
    hvd.init()
    sets = [global_process_set, hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])]
    mine = [it for it in sets if it.included()]
    tensors = [Tensor(gpu, np.ones(5000, np.float32)) for _ in mine]
    streams = [gpu.stream() for _ in mine]

    def allreduce_all() -> None:
        asked = zip(mine, tensors, streams, strict=True)
        handles = [
            start(Ask(ALLREDUCE, set=it), [(tensor.address, tensor.array)], [tensor.address], gpu, stream)
            for it, tensor, stream in asked
        ]
        for handle in handles:
            world().finish(handle)

    text = ""
    try:
        allreduce_all()  # rank 1 may be killed before the other ranks have finished these
        for stream in streams:
            gpu.synchronize(stream)
        if rank() == 1:
            gpu.copy(tensors[0].address, tensors[0].address, 4, streams[0], delay_s=100)
            allreduce_all()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            allreduce_all()
    except EngineError as error:
        text = str(error.args[1])
    for stream in streams:  # no work on the device waits any longer
        gpu.synchronize(stream)
        gpu.destroy(stream)
    for tensor in tensors:
        tensor.free()
    hvd.shutdown()
    left = {kind: now - before[kind] for kind, now in gpu.live().items() if now != before[kind]}
    print(f"told: {text}; left {left}; communicators left: {counted('live')}", flush=True)


def run_trouble() -> None:
    """Make NCCL itself report an error although no rank is lost."""
    hvd.init()
    tensor = Tensor(gpu, np.ones(50, np.float32))
    try:
        while True:
            world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu))
            time.sleep(0.01)
    except EngineError as error:
        print("told:", error.args[1], flush=True)
    hvd.shutdown()
    print(f"communicators left: {counted('live')}", flush=True)


def run_leaving(folder: str) -> None:
    """Let rank 2 leave, and NCCL report an error of the communicator that contained it. The others continue."""
    signs = Signs(folder)
    hvd.init()
    others = hvd.add_process_set([0, 1])
    tensor = Tensor(gpu, np.ones(50, np.float32))

    def allreduce_of_all() -> None:
        world().finish(start(Ask(ALLREDUCE), [(tensor.address, tensor.array)], [tensor.address], gpu))
        world().let_wait(gpu.ordinal, 0)
        gpu.synchronize()

    allreduce_of_all()
    hvd.barrier()
    if rank() == 2:
        hvd.shutdown()
        signs.show("left")
        print("left early", flush=True)
        return
    if rank() == 1:
        # The engine blames NCCL for an error that is two seconds older than the rank's departure.
        signs.wait_for("left", [2])
        ctypes.CDLL(os.environ["STANDIN_NCCL"]).standin_nccl_fail(2)
    until = time.monotonic() + 3.5  # the engine blames NCCL after two seconds
    are_early = True  # both ranks decide with the same numbers, because their clocks differ
    while are_early:
        left_s = hvd.allreduce(np.array([until - time.monotonic()]), name="on", op=hvd.Max, process_set=others)
        are_early = left_s[0] > 0
        time.sleep(0.01)
    try:
        allreduce_of_all()
    except EngineError as error:
        print("told:", error.args[1], flush=True)
    hvd.shutdown()
    print(f"communicators left: {counted('live')}", flush=True)


def run_departure() -> None:
    """Let rank 0 leave, which assigns the launch slots of other sets. A set without it fails with that reason."""
    hvd.init()
    others = hvd.add_process_set([1, 2])
    tensor = Tensor(gpu, np.ones(50, np.float32))
    if rank() == 0:
        hvd.barrier()
        hvd.shutdown()
        print("left early", flush=True)
        return
    ask = Ask(ALLREDUCE, set=others)
    world().finish(start(ask, [(tensor.address, tensor.array)], [tensor.address], gpu))
    hvd.barrier()
    try:
        while True:
            world().finish(start(ask, [(tensor.address, tensor.array)], [tensor.address], gpu))
            time.sleep(0.01)
    except EngineError as error:
        print("told:", error.args[1], flush=True)
    hvd.shutdown()
    print(f"communicators left: {counted('live')}", flush=True)


def run_going_on() -> None:
    """Let rank 0 leave where the others share a GPU and need no launch slots from it."""
    hvd.init()
    others = hvd.add_process_set([1, 2])
    tensor = Tensor(gpu, np.ones(50, np.int32))
    hvd.barrier()
    if rank() == 0:
        hvd.shutdown()
        print("left early", flush=True)
        return
    for _ in range(20):
        world().finish(
            start(Ask(ALLREDUCE, op=program.MAX, set=others), [(tensor.address, tensor.array)], [tensor.address], gpu)
        )
        time.sleep(0.01)
    hvd.shutdown()
    print("went on, launches:", counted("launches"), flush=True)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "results": run_results,
        "otherwise": run_otherwise,
        "joining": run_joining,
        "factors": run_factors,
        "refused": run_refused,
        "orders": run_orders,
        "fault": run_fault,
        "trouble": run_trouble,
        "leaving": run_leaving,
        "departure": run_departure,
        "going on": run_going_on,
    }
    programs[sys.argv[1]](*sys.argv[2:])
