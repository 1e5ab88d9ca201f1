# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_xla_standin.py: calls of the handler for GPUs. Every check raises when it fails."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows the small floats by it
import numpy as np
import xla
from gpu import Ask, Tensor, world
from numpy.typing import NDArray
from program import AVERAGE, MAX, SLOT, SUM, every_ask, expected, gpu, outcome, rank, same_bits, size, small
from xla import XlaError

import horovod.numpy as hvd
from horovod.common import xla_library
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST
from horovod.common.dtypes import DTYPES
from horovod.common.process_sets import ProcessSet, global_process_set

STREAM = gpu.stream()


def raised(call: Any) -> tuple[int, str]:
    try:
        call()
    except XlaError as error:
        code, text = error.args
        return code, text
    raise AssertionError("no error")


def check(name: str, ask: Ask, values: Sequence[Sequence[NDArray[Any]]], only_root: bool = False) -> None:
    """Call the handler and check its results. `values` are indexed by member, then by tensor."""
    members = list(range(size())) if ask.set is global_process_set else list(ask.set.ranks or ())
    mine = values[members.index(rank())]
    inputs = [Tensor(gpu, array) for array in mine]
    outputs = [Tensor(gpu, outcome(ask, array)) for array in mine]
    xla.execute(gpu, ask, name, inputs, outputs, STREAM, only_root)
    gpu.synchronize(STREAM)
    for index, output in enumerate(outputs):
        wanted = expected(ask, [of_member[index] for of_member in values])
        if only_root and rank() != ask.root:
            wanted = np.zeros_like(wanted)
        same_bits(output.array, wanted, (name, ask, index))
    for tensor in [*inputs, *outputs]:
        tensor.free()


def check_operations() -> None:
    for seed, (dtype, _, _) in enumerate(DTYPES):
        for number, ask in enumerate(every_ask(dtype)):
            check(f"{dtype}.{number}", ask, [[small(dtype, (7, 5), it, seed)] for it in range(size())])
    shapes = [(4, 3), (0, 2), (1000,), (SLOT,)]
    groups = [[small("float32", shape, it, k) for k, shape in enumerate(shapes)] for it in range(size())]
    for number, ask in enumerate((Ask(ALLREDUCE), Ask(BROADCAST, root=0))):
        check(f"group.{number}", ask, groups)


def check_one(name: str, ask: Ask, array: NDArray[Any], wanted: NDArray[Any]) -> None:
    tensor, result = Tensor(gpu, array), Tensor(gpu, np.zeros_like(wanted))
    xla.execute(gpu, ask, name, [tensor], [result], STREAM)
    gpu.synchronize(STREAM)
    same_bits(result.array, wanted, name)
    tensor.free()
    result.free()


def check_exchanges() -> None:
    """Check results that are larger than one rank's input, or made of parts of all ranks' tensors."""
    for rows in (0, 1, SLOT // 8):
        parts = [small("int16", (rows * size(), 3), it, 7) for it in range(size())]
        check_one(f"gather.{rows}", Ask(ALLGATHER), parts[rank()], np.concatenate(parts))
        mine = [np.split(part, size())[rank()] for part in parts]
        check_one(f"exchange.{rows}", Ask(ALLTOALL), parts[rank()], np.concatenate(mine))
    ragged = Tensor(gpu, np.ones((1 + rank(), 2), np.float32))
    result = Tensor(gpu, np.ones((size() * (1 + rank()), 2), np.float32))
    code, text = raised(lambda: xla.execute(gpu, Ask(ALLGATHER), "ragged", [ragged], [result], STREAM))
    assert code == xla.FAILED_PRECONDITION, (code, text)
    assert "need the same number of rows on all ranks" in text, text
    ragged.free()
    result.free()


def check_adasum() -> None:
    values = np.random.default_rng(rank()).standard_normal(1000).astype(np.float32)
    check_one("adasum", Ask(ALLREDUCE, hvd.Adasum), values, hvd.allreduce(values, op=hvd.Adasum))


def check_root() -> None:
    """Check the gradient of a broadcast, which is an average that only the root keeps."""
    values = [[small("float32", (33,), it), small("float32", (0,), it)] for it in range(size())]
    for root in range(size()):
        check(f"root.{root}", Ask(ALLREDUCE, AVERAGE, root=root), values, only_root=True)


def check_sets() -> None:
    sets = [hvd.add_process_set([it]) for it in range(size())]
    check("alone", Ask(ALLREDUCE, set=sets[rank()]), [[small("int32", (9,), rank())]])
    for one in sets:
        assert hvd.remove_process_set(one)


def check_order() -> None:
    """Check that a call waits for the stream's late input, and that later work of the stream sees the result."""
    count = 5000
    for turn in range(6):
        tensor, result = Tensor(gpu, np.full(count, -1.0, np.float32)), Tensor(gpu, np.zeros(count, np.float32))
        late, read = np.full(count, rank() + 1.0 + turn, np.float32), np.zeros(count, np.float32)
        garbage = np.full(count, 1e30, np.float32)
        gpu.copy(tensor.address, late.ctypes.data, late.nbytes, STREAM, delay_s=0.02)
        xla.execute(gpu, Ask(ALLREDUCE, MAX), "order", [tensor], [result], STREAM)
        gpu.copy(read.ctypes.data, result.address, read.nbytes, STREAM)
        gpu.copy(tensor.address, garbage.ctypes.data, garbage.nbytes, STREAM)
        gpu.copy(result.address, garbage.ctypes.data, garbage.nbytes, STREAM)
        gpu.synchronize(STREAM)
        assert np.all(read == size() + turn), (turn, read[:5])
        tensor.free()
        result.free()


def check_late_rank() -> None:
    """Check a late rank, for which the others wait longer than the handler drives the engine itself."""
    if rank() == 0:
        time.sleep(0.3)
    check("late", Ask(ALLREDUCE), [[small("float32", (100,), it)] for it in range(size())])


def check_errors() -> None:
    tensor = Tensor(gpu, np.ones(3 + rank(), np.float32))
    code, text = raised(lambda: xla.execute(gpu, Ask(ALLREDUCE), "shapes", [tensor], [tensor], STREAM))
    assert code == xla.FAILED_PRECONDITION, (code, text)
    assert "Mismatched ALLREDUCE tensor shapes" in text, text
    code, text = raised(lambda: xla.execute(gpu, Ask(ALLREDUCE), "nowhere", [tensor], [tensor], 0))
    assert (code, text) == (xla.UNIMPLEMENTED, "there is no stream")
    strange = Ask(ALLREDUCE, set=ProcessSet([0]))
    code, text = raised(lambda: xla.execute(gpu, strange, "strange", [tensor], [tensor], STREAM))
    assert code == xla.UNAVAILABLE, (code, text)
    tensor.free()


CHECKS = (
    check_operations,
    check_exchanges,
    check_adasum,
    check_root,
    check_sets,
    check_order,
    check_late_rank,
    check_errors,
)


def run_results() -> None:
    assert xla.traits() == 0  # XLA must not put calls into a command buffer, because other ranks take part in each call
    before = gpu.live()
    for _ in range(2):  # the handlers must find the second world too
        hvd.init()
        for it in CHECKS:
            it()
        hvd.shutdown()
        assert gpu.live() == before, (gpu.live(), before)
        tensor = Tensor(gpu, np.ones(3, np.float32))
        code, text = raised(lambda it=tensor: xla.execute(gpu, Ask(ALLREDUCE), "after", [it], [it], STREAM))
        assert code == xla.UNAVAILABLE, (code, text)
        assert "not initialized" in text, text
        tensor.free()
    print("all checks passed", flush=True)


def run_killed() -> None:
    """Kill rank 1 while others are in the handler. They learn which rank it was and free everything."""
    before = gpu.live()
    hvd.init()
    tensor = Tensor(gpu, np.ones(SLOT, np.float32))
    xla.execute(gpu, Ask(ALLREDUCE), "first", [tensor], [tensor], STREAM)
    gpu.synchronize(STREAM)
    hvd.barrier()
    if rank() == 1:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        threading.Event().wait(60)
    code, text = raised(lambda: xla.execute(gpu, Ask(ALLREDUCE), "second", [tensor], [tensor], STREAM))
    assert code == xla.ABORTED, (code, text)
    assert xla_library.load().lost_rank() == 1
    tensor.free()
    began = time.monotonic()
    hvd.shutdown()
    took = time.monotonic() - began
    assert gpu.live() == before, (gpu.live(), before)
    print(f"shut down in {took:.1f} s: {text}", flush=True)


def run_shutdown() -> None:
    """Check that a rank that shuts down ends the calls in which its threads wait."""
    hvd.init()
    tensor = Tensor(gpu, np.ones(5, np.float32))
    told: list[tuple[int, str]] = []

    def call() -> None:
        told.append(raised(lambda: xla.execute(gpu, Ask(ALLREDUCE, SUM), "alone", [tensor], [tensor], STREAM)))

    if rank() == 0:
        thread = threading.Thread(target=call)
        thread.start()
        while json.loads(world().describe())["operations_under_way"] == 0 and thread.is_alive():
            time.sleep(0.001)
        thread.join(0.2)
        assert thread.is_alive()  # it waits, because rank 1 never calls
        hvd.shutdown()
        thread.join(20)
        assert not thread.is_alive()
        ((code, text),) = told
        assert code == xla.ABORTED, (code, text)
    else:
        try:
            hvd.barrier()
        except hvd.HorovodInternalError:  # raised when the other rank has left
            pass
        hvd.shutdown()
    print("shut down", flush=True)


if __name__ == "__main__":
    xla_library.load()
    {"results": run_results, "killed": run_killed, "shutdown": run_shutdown}[sys.argv[1]]()
