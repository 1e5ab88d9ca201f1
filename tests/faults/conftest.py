# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the fault tests: after a test, no process, socket or shared memory of its job may be left."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from testkit.families import Mark, described
from testkit.hosts import Network
from testkit.preloaded import BY_FRAMEWORK, Preloaded
from testkit.speed import patience

# For killed processes to end on a busy machine; tests wait themselves for processes that must end on their own.
_LIMIT_S = 10.0
_MARK = "HOROVOD_TEST_FAULT"  # variable of all processes of a test


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no process and no shared memory is left.

    Sockets need no check, because they end with their process.
    """
    mark = Mark(_MARK)
    monkeypatch.setenv(mark.name, mark.value)
    memory_before = _named_memory()
    yield
    give_up = time.monotonic() + patience(_LIMIT_S)
    while left := [*map(described, mark.processes()), *sorted(_named_memory() - memory_before)]:
        assert time.monotonic() < give_up, f"left behind: {left}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, str]]]:
    """Yield a function that returns variables with which programs are forked from a process that imported a framework.

    It returns no variables for a framework that is imported quickly or must not be forked.
    """
    started: dict[tuple[str, ...], dict[str, str]] = {}
    with ExitStack() as servers:

        def variables(framework: str) -> dict[str, str]:
            modules = BY_FRAMEWORK.get(framework)
            if modules is None:
                return {}
            if modules not in started:
                path = str(tmp_path_factory.mktemp("forking") / "preloaded")
                started[modules] = servers.enter_context(Preloaded(path, modules, {_MARK: ""})).variables
            return started[modules]

        yield variables


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield the hosts a and b, as network namespaces."""
    network = Network(["a", "b"])
    yield network
    network.close()


def _named_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "horovod" in name}
