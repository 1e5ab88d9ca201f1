# SPDX-License-Identifier: Apache-2.0
"""Khorovod's engine in one rank, through the NumPy API or by raw addresses, as the compiled binding of a framework.

`door` "shared" is the NumPy API on arrays in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

import horovod
import horovod.numpy as hvd
from benchkit.backend import Operation, UnsupportedError
from benchkit.problem import OPS, ROOT, Array, Problem
from horovod.common.arrays import address_of
from horovod.common.context import default_context
from horovod.common.dtypes import ID_BY_DTYPE

_SUM = 1  # hvd::ReduceOp
_IN_PLACE = ("allreduce", "broadcast")


def join_world(rank: int, ranks: int) -> Khorovod:
    return Khorovod(rank)


class Khorovod:
    """Implementation of benchkit.backend.Backend."""

    def __init__(self, rank: int) -> None:
        hvd.init()
        self.rank = rank
        self.library = f"khorovod {horovod.__version__}"

    def prepare(self, problem: Problem, door: str) -> Operation:
        if problem.tensors > 1:
            return self._many(problem)
        # Use a fixed name, because training reduces tensors of equal names in every step.
        name = f"{problem.op}.{problem.bytes}.{problem.dtype}.{door}.{problem.average}"
        return self._by_address(problem, name) if door == "address" else self._by_array(problem, name, door == "shared")

    def close(self) -> None:
        hvd.shutdown()

    def _by_array(self, problem: Problem, name: str, shared: bool) -> Operation:
        array = problem.input(self.rank)
        if shared:
            array, values = hvd.shared_zeros(array.shape, array.dtype), array
            array[:] = values
        reduce = hvd.Average if problem.average else hvd.Sum
        calls: dict[str, Callable[[], Array]] = {
            "allreduce": lambda: hvd.allreduce_(array, name=name, op=reduce),
            "allgather": lambda: hvd.allgather(array, name=name),
            "broadcast": lambda: hvd.broadcast_(array, ROOT, name=name),
            "alltoall": lambda: hvd.alltoall(array, name=name),
            "reducescatter": lambda: hvd.reducescatter(array, name=name, op=hvd.Sum),
        }
        call, result = calls[problem.op], [array]

        def run() -> None:
            result[0] = call()

        return Operation(run, [array], lambda: list(result))

    def _by_address(self, problem: Problem, name: str) -> Operation:
        if problem.average:
            raise UnsupportedError("averages by address are not measured")
        array = problem.input(self.rank)
        output = array if problem.op in _IN_PLACE else problem.output()
        kind, dtype, shape = OPS.index(problem.op), ID_BY_DTYPE[array.dtype], array.shape
        source, target = address_of(array), address_of(output)
        root = ROOT if problem.op == "broadcast" else -1
        splits = [problem.share] * problem.ranks if problem.op == "alltoall" else []
        world = default_context.world
        submit, wait, release = world.submit, world.wait, world.release

        def run() -> None:
            handle = submit(0, kind, name, dtype, shape, source, target, _SUM, 1.0, 1.0, root, splits, True)
            wait(handle)
            release(handle)

        return Operation(run, [array], lambda: [output])

    def _many(self, problem: Problem) -> Operation:
        if problem.op != "allreduce":
            raise UnsupportedError(f"several tensors at once: only allreduce, not {problem.op}")
        arrays = [problem.input(self.rank) for _ in range(problem.tensors)]
        named = [(array, f"many.{problem.bytes}.{index}") for index, array in enumerate(arrays)]

        def run() -> None:
            for handle in [hvd.allreduce_async_(array, name=name, op=hvd.Sum) for array, name in named]:
                hvd.synchronize(handle)

        return Operation(run, arrays, lambda: arrays)
