# SPDX-License-Identifier: Apache-2.0
"""Process trees: which processes of a tree are alive, and how to kill all of them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Return True if the process runs. A zombie counts as dead, because only this machine's init can reap an orphan."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def living(processes: Iterable[psutil.Process], limit_s: float = 0.0) -> list[psutil.Process]:
    """Return the processes that are still alive after at most `limit_s` seconds."""
    processes = list(processes)
    psutil.wait_procs([process for process in processes if is_alive(process)], timeout=limit_s)
    return [process for process in processes if is_alive(process)]


def kill_family(pid: int) -> None:
    """Kill a process and its descendants."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


class Mark:
    """Environment variable that children inherit; it finds them even after their own parent has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = uuid.uuid4().hex

    def processes(self) -> Iterator[psutil.Process]:
        """Yield all live processes with this variable, except this process."""
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(self.name) == self.value
                if process.pid != os.getpid() and marked and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except psutil.Error:
                continue


def described(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)
