# SPDX-License-Identifier: Apache-2.0
"""For fault tests: whatever a test does to a job, no process, socket or shared memory of it may be left."""

import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

_MARK = "HOROVOD_TEST_FAULT"
_LIMIT_S = 3.0


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(_MARK, mark)
    memory_before = _named_memory()
    yield
    give_up = time.monotonic() + _LIMIT_S
    while left := [*_processes_of(mark), *sorted(_named_memory() - memory_before)]:
        assert time.monotonic() < give_up, f"left behind: {left}"
        time.sleep(0.05)


def _processes_of(mark: str) -> Iterator[str]:
    """Their sockets, abstract or TCP, live exactly as long as they do."""
    for process in psutil.process_iter():
        try:
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(_MARK) == mark:
                yield f"{process.pid}: {' '.join(process.cmdline())}"
        except psutil.Error:
            continue


def _named_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "horovod" in name}
