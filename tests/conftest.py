# SPDX-License-Identifier: Apache-2.0
"""For all tests: what is left out, and that no process outlives the session, whoever its parent is by then."""

import importlib.util
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import warning_rules

# A shell without job control lets what it starts in the background ignore Ctrl-C, and children inherit that too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Children inherit it, so they are found even after their own parent has ended.
_MARK = "HOROVOD_TEST_SESSION"

# Tests of a door whose framework is not installed are left out. CI names in this variable the doors that must be there.
_REQUIRED = "HOROVOD_TEST_DOORS"
_DOORS = ("jax", "keras", "mxnet", "tensorflow", "torch")


def pytest_configure(config: pytest.Config) -> None:
    for line in warning_rules.for_pytest():
        config.addinivalue_line("filterwarnings", line)


def _is_installed(framework: str) -> bool:
    spec = importlib.util.find_spec(framework)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    name = collection_path.stem.removeprefix("test_").split("_")[0]
    required = os.environ.get(_REQUIRED, "").split(",")
    return True if name in _DOORS and name not in required and not _is_installed(name) else None


def _marked_processes(value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(_MARK) == value:
                yield process
        except psutil.Error:
            continue


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    value = os.environ[_MARK] = uuid.uuid4().hex
    yield
    left = list(_marked_processes(value))
    psutil.wait_procs(left, timeout=2)
    left = list(_marked_processes(value))
    described = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
    for process in left:
        process.kill()
    assert not described, "processes outlived the tests:\n" + "\n".join(described)
