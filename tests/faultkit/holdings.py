# SPDX-License-Identifier: Apache-2.0
"""What this process, or another one, holds of the machine."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

_LOOK_FOR_S, _LOOK_EVERY_S = 0.02, 0.001
_EXITING = 0x4  # PF_EXITING of the kernel


def holdings(pid: int | str = "self") -> dict[str, int]:
    return {
        "threads": len(threads(pid)),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": len(shared_mappings(pid)),
        "resident": psutil.Process(None if pid == "self" else int(pid)).memory_info().rss,
    }


def shared_mappings(pid: int | str = "self") -> list[str]:
    """Each as its first address, its last, and its file.

    The kernel lists parts of one apart where a forked child may see one but not the other.
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
    """What the descriptors lead to, for who looks for a leak."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(found)


def threads(pid: int | str = "self") -> dict[str, str]:
    """Names by thread id; the fewest of some moments, between which those that have only to end get a core.

    Whoever waits for a thread of Python is told before it has ended, and the kernel shows native ones for longer too.
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
