# SPDX-License-Identifier: Apache-2.0
"""Floor as a measured library: it compiles benchmarks/floor and launches its ranks."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from testkit.variables import free_port

from benchkit.world import World

_SOURCES = Path(__file__).resolve().parents[1] / "floor"
_RESULT = _SOURCES.parents[1] / "build" / "benchmarks" / "floor.so"
_FLAGS = ["-std=c11", "-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
TENSOR_BYTES = 1 << 28  # largest tensor that is measured in shared memory


class CompileError(Exception):
    """Error of a missing or failing C compiler."""


class Floor(World):
    """World of the bare C prototypes (see benchmarks/floor/floor.h), compiled for exactly this machine."""

    def __init__(self, ranks: int, cores: Sequence[int | str], transport: str) -> None:
        super().__init__("floor", ranks, cores, transport)
        self._memory: Path | None = None

    def unavailable(self) -> str | None:
        try:
            compiled()
        except CompileError as error:
            return str(error)
        return None

    def launch(self, worker_arguments: list[str]) -> None:
        library = ctypes.CDLL(str(compiled()))
        library.FloorBytes.restype, library.FloorBytes.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_size_t]
        with tempfile.NamedTemporaryFile(prefix="bench-floor-", dir="/dev/shm", delete=False) as file:
            # A sparse file, which uses memory only where it is written.
            file.truncate(library.FloorBytes(self.ranks, TENSOR_BYTES))
            self._memory = Path(file.name)
        shared = {
            "BENCH_FLOOR": str(compiled()),
            "BENCH_FLOOR_MEMORY": str(self._memory),
            "BENCH_FLOOR_TENSOR": str(TENSOR_BYTES),
            "BENCH_ADDRESS": self.address(),
            "BENCH_PORT": str(free_port()),
        } | ({"BENCH_PINNED": "1"} if self.cores else {})
        for rank in range(self.ranks):
            self.spawn_rank(rank, "floor", worker_arguments, shared)

    def stop(self) -> None:
        super().stop()
        if self._memory is not None:
            self._memory.unlink(missing_ok=True)
            self._memory = None


@cache
def compiled() -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CompileError("no C compiler (cc, gcc or clang) is installed")
    _RESULT.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, *_FLAGS, "-o", str(_RESULT), *map(str, sorted(_SOURCES.glob("*.c")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise CompileError(f"{compiler} failed: {done.stderr[-1000:]}")
    return _RESULT
