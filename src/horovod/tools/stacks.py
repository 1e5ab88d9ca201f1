# SPDX-License-Identifier: Apache-2.0
"""`hvd stacks`: ask running workers for the Python stacks of their threads. See horovod.common.stacks.

A process is signalled only if it supports this: it holds the answer file and catches the signal that the file names.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from horovod.common.joining.elastic_place import BIRTH_VARIABLE
from horovod.common.stacks import FILE_PREFIX

_LINK = re.compile(rf".*[/:]{FILE_PREFIX}(\d+)-.* \(deleted\)")
_LOOK_S = 0.005


class NoAnswer(Exception):  # noqa: N818 - the reason is printed beside the answers
    """Error: the process has ended, does not support this, belongs to another user, or is frozen."""


@dataclass(frozen=True)
class Offer:
    """Worker that can be asked: the path of its answer, and the signal that asks for it."""

    pid: int
    path: str
    signal: int


def find_offer(pid: int) -> Offer | None:
    """Return how to ask a process, or None if it is no worker.

    Raises:
        PermissionError: The process belongs to another user.
        FileNotFoundError: The process has ended.
    """
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with suppress(FileNotFoundError):
            match = _LINK.fullmatch(os.readlink(path))
            if match is not None and _masks(f"/proc/{pid}/status", "SigCgt") >> (int(match[1]) - 1) & 1:
                return Offer(pid, path, int(match[1]))
    return None


def find_workers(pids: Sequence[int]) -> list[Offer]:
    """Return the workers among these processes, and the workers of launchers among them.

    Without pids, all of this user's.
    """
    if not pids:
        return [offer for offer in map(_quietly, sorted(psutil.pids())) if offer is not None]
    return [offer for pid in pids for offer in _workers_under(pid)]


def read_stacks(offer: Offer, limit_s: float = 2.0) -> str:
    """Send the signal and return what the worker writes. Raise NoAnswer if it does not answer within the limit."""
    try:
        with _process(offer.pid) as process, _answer_file(offer) as answer:
            os.ftruncate(answer, 0)
            unaware = _threads_that_block(offer)
            process.send(offer.signal)
            deadline = time.monotonic() + limit_s
            while os.fstat(answer).st_size == 0 or _threads_that_block(offer) - unaware:
                if time.monotonic() > deadline:
                    raise NoAnswer(f"no answer within {limit_s:g} s; the process is {_state(offer.pid)}")
                time.sleep(_LOOK_S)
            text = os.pread(answer, os.fstat(answer).st_size, 0).decode(errors="replace")
            os.ftruncate(answer, 0)
            return text
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        raise NoAnswer("the process has ended") from None
    except PermissionError:
        raise NoAnswer("no permission to look at the process") from None


def title(pid: int) -> str:
    """Return pid, rank and command of a worker for display.

    In an elastic job, show the birth id, because ranks change.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        variables = process.environ()  # as they were when the process began
        names = {BIRTH_VARIABLE: "worker", "HOROVOD_RANK": "rank"}
        place = next((f"{what} {variables[name]}, " for name, what in names.items() if name in variables), "")
        return f"{place}pid {pid}: {' '.join(process.cmdline())[:200]}"
    return f"pid {pid}"


def _workers_under(pid: int) -> list[Offer]:
    try:
        offer = find_offer(pid)
        if offer is not None:
            return [offer]
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        raise NoAnswer(f"there is no process {pid}") from None
    except (PermissionError, psutil.AccessDenied):
        raise NoAnswer(f"no permission to look at process {pid}: is it another user's?") from None
    found = [offer for offer in map(_quietly, sorted(children)) if offer is not None]
    if not found:
        raise NoAnswer(f"process {pid} is not a worker that has called hvd.init(), nor has it started one")
    return found


def _quietly(pid: int) -> Offer | None:
    try:
        return find_offer(pid)
    except OSError:
        return None


@contextmanager
def _answer_file(offer: Offer) -> Iterator[int]:
    """Yield the worker's answer file, locked so that concurrent requests do not mix their answers."""
    # Look it up again now that the process is pinned, because the pid could have been reused before.
    if find_offer(offer.pid) != offer:
        raise ProcessLookupError
    descriptor = os.open(offer.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class _Pinned:
    """Process that cannot be confused with a later one of equal pid, if the kernel has pidfds."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor: int | None = None
        try:
            self.descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):
            pass

    def send(self, number: int) -> None:
        if self.descriptor is None:
            os.kill(self.pid, number)
        else:
            signal.pidfd_send_signal(self.descriptor, number)


@contextmanager
def _process(pid: int) -> Iterator[_Pinned]:
    pinned = _Pinned(pid)
    try:
        yield pinned
    finally:
        if pinned.descriptor is not None:
            os.close(pinned.descriptor)


def _threads_that_block(offer: Offer) -> set[str]:
    """Return the threads with the signal blocked. The kernel blocks it in the thread that is writing the answer."""
    blocking = set()
    for thread in os.listdir(f"/proc/{offer.pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if _masks(f"/proc/{offer.pid}/task/{thread}/status", "SigBlk") >> (offer.signal - 1) & 1:
                blocking.add(thread)
    return blocking


def _masks(path: str, field: str) -> int:
    with open(path, encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1], 16)
    return 0


def _state(pid: int) -> str:
    return str(psutil.Process(pid).status())
