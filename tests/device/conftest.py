# SPDX-License-Identifier: Apache-2.0
"""The stand-ins, compiled once for all tests, and PyTorch, imported once for all ranks."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from devicekit.standins import OWN_GPUS, compile_library, compile_standin
from testkit.places import ROOT
from testkit.preloaded import TORCH, Preloaded


def preloading(env: dict[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables, and those with which programs are forked from a process that has imported PyTorch."""
    modules = TORCH if find_spec("torch") else ("horovod.numpy",)
    with Preloaded(str(folder / "preloaded"), modules, {**env, "OMP_NUM_THREADS": "1"}) as server:
        yield {**env, **server.variables}


@pytest.fixture(scope="session")
def driver(standins: dict[str, str]) -> dict[str, str]:
    """Return variables with which ranks find the stand-in for the CUDA driver, and no NCCL."""
    return {**standins, "HOROVOD_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield variables with which ranks find the stand-ins for the driver and for NCCL."""
    folder = tmp_path_factory.mktemp("standins")
    yield from preloading(compile_standin(folder, "libcuda.so.1", "libnccl.so.2"), folder)


@pytest.fixture(scope="session")
def nccl(standins: dict[str, str]) -> dict[str, str]:
    """Return variables with which ranks find both stand-ins, and each rank has its own GPU."""
    return {**standins, **OWN_GPUS}


@pytest.fixture(scope="session")
def xla(driver: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which ranks find the driver's stand-in, and a library that calls handlers as XLA does."""
    library = tmp_path_factory.mktemp("xla") / "libxla_frame.so"
    compile_library("xla_frame.cc", library, [f"-I{ROOT / 'third_party' / 'xla_ffi'}"])
    return {**driver, "STANDIN_XLA": str(library)}
