# SPDX-License-Identifier: Apache-2.0
"""The stand-ins, compiled once for all tests."""

import pytest
from devicekit.standins import OWN_GPUS, compile_library, compile_standin
from testkit.places import ROOT


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which ranks find the stand-in for the CUDA driver, and no NCCL."""
    return {
        **compile_standin(tmp_path_factory.mktemp("driver"), "libcuda.so.1"),
        "HOROVOD_NCCL_LIBRARY": "/nowhere/libnccl.so.2",
    }


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which ranks find the stand-ins for the driver and for NCCL."""
    return compile_standin(tmp_path_factory.mktemp("standins"), "libcuda.so.1", "libnccl.so.2")


@pytest.fixture(scope="session")
def nccl(standins: dict[str, str]) -> dict[str, str]:
    """The same; every rank has a GPU of its own."""
    return {**standins, **OWN_GPUS}


@pytest.fixture(scope="session")
def xla(driver: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The driver, and what calls the handlers as XLA does."""
    library = tmp_path_factory.mktemp("xla") / "libxla_frame.so"
    compile_library("xla_frame.cc", library, [f"-I{ROOT / 'third_party' / 'xla_ffi'}"])
    return {**driver, "STANDIN_XLA": str(library)}
