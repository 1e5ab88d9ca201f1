# SPDX-License-Identifier: Apache-2.0
"""What a worker needs of a communication library: join its world, and prepare operations on plain memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benchkit.problem import Array, Problem

_MODULES = {
    "khorovod": "benchkit.backend_khorovod",
    "gloo": "benchkit.backend_gloo",
    "mpi": "benchkit.backend_mpi",
    "floor": "benchkit.backend_floor",
}


class UnsupportedError(Exception):
    """The library cannot do this operation or data type at all; the others are still measured."""


@dataclass
class Operation:
    """A prepared collective: `run` does it once on `inputs`; `results` gives what the last run left.

    `timed` is for what is not called from Python: so many runs from common starts, the nanoseconds of each.
    """

    run: Callable[[], object]
    inputs: list[Array]
    results: Callable[[], list[Array]]
    timed: Callable[[int], list[int]] | None = None

    def rewrite(self) -> None:
        """Write all input anew, as a training step would: the data is then dirty in this core's cache."""
        for array in self.inputs:
            array.fill(0)


class Backend(Protocol):
    """One library in one rank."""

    library: str  # name and version, for the report

    def prepare(self, problem: Problem, door: str) -> Operation:
        """`door`: which of the library's entrances to use, where it has several."""

    def close(self) -> None: ...


def join_world(name: str, rank: int, ranks: int) -> Backend:
    """Meet the other ranks. What the library needs for that is in the environment."""
    module = importlib.import_module(_MODULES[name])
    backend: Backend = module.join_world(rank, ranks)
    return backend
