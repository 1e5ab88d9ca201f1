# SPDX-License-Identifier: Apache-2.0
"""Interface to a communication library in a worker: join its world, and prepare operations on ordinary memory."""

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
    """Error for an operation or data type that a library lacks; the others are still measured."""


@dataclass
class Operation:
    """Prepared collective: `run` executes it once on `inputs`; `results` returns the results of the last run.

    `timed(runs)` is for libraries that are not called from Python: all ranks start each run
    together; return the nanoseconds of each run.
    """

    run: Callable[[], object]
    inputs: list[Array]
    results: Callable[[], list[Array]]
    timed: Callable[[int], list[int]] | None = None

    def rewrite(self) -> None:
        """Overwrite all inputs as a training step would, so that the data is modified in this core's cache."""
        for array in self.inputs:
            array.fill(0)


class Backend(Protocol):
    """Communication library in one rank."""

    library: str  # name and version for the report

    def prepare(self, problem: Problem, door: str) -> Operation:
        """Prepare a collective; `door` selects one of the library's APIs if it has several."""

    def close(self) -> None: ...


def join_world(name: str, rank: int, ranks: int) -> Backend:
    """Join the other ranks' world. The environment contains what the library needs for that."""
    module = importlib.import_module(_MODULES[name])
    backend: Backend = module.join_world(rank, ranks)
    return backend
