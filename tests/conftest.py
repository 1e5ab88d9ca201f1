# SPDX-License-Identifier: Apache-2.0
"""For all tests: a process that outlives the session fails it, whoever its parent is by then."""

import os
import uuid
from collections.abc import Iterator

import psutil
import pytest

# Children inherit it, so they are found even after their own parent has ended.
_MARK = "HOROVOD_TEST_SESSION"


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
