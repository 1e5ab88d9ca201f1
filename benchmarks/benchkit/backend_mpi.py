# SPDX-License-Identifier: Apache-2.0
"""MPI library (Open MPI or MPICH) in one rank, through mpi4py's buffer functions."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

from benchkit.backend import Operation, UnsupportedError
from benchkit.problem import ROOT, Array, Problem


def join_world(rank: int, ranks: int) -> Mpi:
    return Mpi(rank, ranks)


class Mpi:
    """Implementation of benchkit.backend.Backend."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.world = MPI.COMM_WORLD
        if (self.world.rank, self.world.size) != (rank, ranks):
            found = f"{self.world.rank} of {self.world.size}"
            raise RuntimeError(f"MPI says that this is rank {found}, not {rank} of {ranks}: another MPI's mpiexec?")
        self.rank = rank
        first_line = MPI.Get_library_version().splitlines()[0].split(",")[0]
        self.library = " ".join(first_line.replace("Version:", "").split())

    def prepare(self, problem: Problem, door: str) -> Operation:
        if problem.average:
            raise UnsupportedError("MPI has no average")
        if problem.dtype in ("float16", "bfloat16"):
            raise UnsupportedError(f"MPI has no {problem.dtype}")
        if problem.tensors > 1:
            return self._many(problem)
        array, world = problem.input(self.rank), self.world
        output = array if problem.op in ("allreduce", "broadcast") else problem.output()
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda: world.Allreduce(MPI.IN_PLACE, array),
            "allgather": lambda: world.Allgather(array, output),
            "broadcast": lambda: world.Bcast(array, ROOT),
            "alltoall": lambda: world.Alltoall(array, output),
            "reducescatter": lambda: world.Reduce_scatter_block(array, output),
        }
        return Operation(calls[problem.op], [array], lambda: [output])

    def close(self) -> None:
        MPI.Finalize()

    def _many(self, problem: Problem) -> Operation:
        if problem.op != "allreduce":
            raise UnsupportedError(f"several tensors at once: only allreduce, not {problem.op}")
        arrays: list[Array] = [problem.input(self.rank) for _ in range(problem.tensors)]

        def run() -> None:
            MPI.Request.Waitall([self.world.Iallreduce(MPI.IN_PLACE, array) for array in arrays])

        return Operation(run, arrays, lambda: arrays)
