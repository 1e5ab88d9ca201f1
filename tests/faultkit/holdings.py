# SPDX-License-Identifier: Apache-2.0
"""Resources that this process, or another one, uses."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

_LOOK_FOR_S, _LOOK_EVERY_S = 0.02, 0.001
_EXITING = 0x4  # PF_EXITING in the kernel


def holdings(pid: int | str = "self") -> dict[str, int]:
    return {
        "threads": len(threads(pid)),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": len(shared_mappings(pid)),
        "resident": psutil.Process(None if pid == "self" else int(pid)).memory_info().rss,
    }


def shared_mappings(pid: int | str = "self") -> list[str]:
    """Return the shared mappings, each as its first address, its last address, and its file.

    The kernel lists parts of a mapping separately if a forked child may access only some of them; these parts are
    joined.
    """
    found: list[list[str]] = []
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if "memfd:" in line or "/dev/shm" in line:
                addresses, _, _, _, file = line.split(maxsplit=4)
                first, _, last = addresses.partition("-")
                if found and found[-1][1:] == [first, file.strip()]:
                    found[-1][1] = last
                else:
                    found.append([first, last, file.strip()])
    return [" ".join(one) for one in found]


def open_files(pid: int | str = "self") -> list[str]:
    """Return the targets of the descriptors, to help find a leak."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(found)


def threads(pid: int | str = "self") -> dict[str, str]:
    """Return the names of the threads by thread id: the fewest that were seen at several moments.

    Waiting for a thread of Python returns before the thread has ended, and the kernel lists native threads even longer.
    The pauses between the moments let these threads end.
    """
    until = time.monotonic() + _LOOK_FOR_S
    fewest = _threads_now(pid)
    while time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
        fewest = min(fewest, _threads_now(pid), key=len)
    return fewest


def _threads_now(pid: int | str) -> dict[str, str]:
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{thread}/stat") as stat:
            head, _, fields = stat.read().rpartition(")")
            if not int(fields.split()[6]) & _EXITING:
                found[thread] = head.partition("(")[2]
    return found
