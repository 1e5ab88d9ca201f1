# SPDX-License-Identifier: Apache-2.0
"""For fault tests: whatever a test does to a job, no process, socket or shared memory of it may be left."""

import os
import time
from collections.abc import Iterator

import pytest
from testkit.families import Mark, described
from testkit.hosts import Network
from testkit.speed import patience

_LIMIT_S = 10.0  # for what was killed to end on a busy machine; what must end by itself is waited for by each test


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sockets of a process, abstract or TCP, live exactly as long as it does."""
    mark = Mark("HOROVOD_TEST_FAULT")
    monkeypatch.setenv(mark.name, mark.value)
    memory_before = _named_memory()
    yield
    give_up = time.monotonic() + patience(_LIMIT_S)
    while left := [*map(described, mark.processes()), *sorted(_named_memory() - memory_before)]:
        assert time.monotonic() < give_up, f"left behind: {left}"
        time.sleep(0.05)


@pytest.fixture
def network() -> Iterator[Network]:
    """Hosts a and b, as network namespaces."""
    network = Network(["a", "b"])
    yield network
    network.close()


def _named_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "horovod" in name}
