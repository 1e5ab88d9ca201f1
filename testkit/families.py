# SPDX-License-Identifier: Apache-2.0
"""Processes with all that they have started: who of them is alive, and how to end them without exception."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil


def is_alive(process: psutil.Process) -> bool:
    """A dead orphan may stay a zombie: whether it is reaped is the business of this machine's init."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def living(processes: Iterable[psutil.Process], limit_s: float = 0.0) -> list[psutil.Process]:
    """Those that are still alive after at most `limit_s` seconds."""
    processes = list(processes)
    psutil.wait_procs([process for process in processes if is_alive(process)], timeout=limit_s)
    return [process for process in processes if is_alive(process)]


def kill_family(pid: int) -> None:
    """End a process and its descendants at once."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


class Mark:
    """A variable that children inherit: it finds them even after their own parent has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = uuid.uuid4().hex

    def processes(self) -> Iterator[psutil.Process]:
        """All that live with this mark, but for this process."""
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
