# SPDX-License-Identifier: Apache-2.0
"""Setup for all tests: skip tests whose framework is missing, and fail if a process outlives the test session."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import warning_rules
from testkit.families import Mark, described
from testkit.suite.plugin import (  # noqa: F401 - hooks that pytest finds in this module
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_scale_timeout,
)

# A shell without job control makes its background processes ignore Ctrl-C, and their children inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Use one thread for each of up to four ranks on two cores: OpenMP's threads spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests of a framework that is not installed are skipped. CI names in this variable the frameworks that must exist.
_REQUIRED = "HOROVOD_TEST_DOORS"
_LIMIT_S = 10.0  # time for killed processes to end on a busy machine
_DOORS = ("jax", "keras", "mxnet", "tensorflow", "torch")


def pytest_configure(config: pytest.Config) -> None:
    for line in warning_rules.for_pytest():
        config.addinivalue_line("filterwarnings", line)


def _is_installed(framework: str) -> bool:
    spec = importlib.util.find_spec(framework)
    return spec is not None and spec.origin is not None  # a folder without __init__.py is not a package


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    name = collection_path.stem.removeprefix("test_").split("_")[0]
    required = os.environ.get(_REQUIRED, "").split(",")
    return True if name in _DOORS and name not in required and not _is_installed(name) else None


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    mark = Mark("HOROVOD_TEST_SESSION")
    os.environ[mark.name] = mark.value
    yield
    psutil.wait_procs(list(mark.processes()), timeout=_LIMIT_S)
    left = list(mark.processes())
    shown = [described(process) for process in left]
    for process in left:
        process.kill()
    assert not shown, "processes outlived the tests:\n" + "\n".join(shown)
