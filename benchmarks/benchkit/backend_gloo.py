# SPDX-License-Identifier: Apache-2.0
"""Backend torch.distributed with Gloo in one rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from benchkit.backend import Operation, UnsupportedError
from benchkit.problem import ROOT, Array, Problem

_TIMEOUT = timedelta(seconds=120)


def join_world(rank: int, ranks: int) -> Gloo:
    return Gloo(rank, ranks)


class Gloo:
    """Implementation of benchkit.backend.Backend."""

    def __init__(self, rank: int, ranks: int) -> None:
        torch.set_num_threads(1)
        store = f"file://{os.environ['BENCH_STORE']}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=_TIMEOUT)
        self.rank = rank
        self.library = f"Gloo in torch {torch.__version__}"

    def prepare(self, problem: Problem, door: str) -> Operation:
        if problem.average:
            raise UnsupportedError("Gloo has no average")
        if problem.tensors > 1:
            return self._many(problem)
        array = problem.input(self.rank)
        output = array if problem.op in ("allreduce", "broadcast") else problem.output()
        source, target = _tensor(array), _tensor(output)
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda: dist.all_reduce(source),
            "allgather": lambda: dist.all_gather_into_tensor(target, source),
            "broadcast": lambda: dist.broadcast(source, ROOT),
            "alltoall": lambda: dist.all_to_all_single(target, source),
            "reducescatter": lambda: dist.reduce_scatter_tensor(target, source),
        }
        return Operation(calls[problem.op], [array], lambda: [output])

    def close(self) -> None:
        dist.destroy_process_group()

    def _many(self, problem: Problem) -> Operation:
        if problem.op != "allreduce":
            raise UnsupportedError(f"several tensors at once: only allreduce, not {problem.op}")
        arrays = [problem.input(self.rank) for _ in range(problem.tensors)]
        tensors = [_tensor(array) for array in arrays]

        def run() -> None:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return Operation(run, arrays, lambda: arrays)


def _tensor(array: Array) -> torch.Tensor:
    """Return a tensor over the array's memory, so that all libraries use equal kinds of memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise UnsupportedError(str(error)) from None
