# SPDX-License-Identifier: Apache-2.0
"""What this process, or another one, holds of the machine."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

_LOOK_FOR_S = 0.02


def holdings(pid: int | str = "self") -> dict[str, int]:
    with open(f"/proc/{pid}/maps") as maps:
        shared = sum("memfd:" in line or "/dev/shm" in line for line in maps)
    return {
        "threads": _fewest_threads(pid),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": shared,
        "resident": psutil.Process(None if pid == "self" else int(pid)).memory_info().rss,
    }


def open_files(pid: int | str = "self") -> list[str]:
    """What the descriptors lead to, for who looks for a leak."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(found)


def _fewest_threads(pid: int | str) -> int:
    """The fewest of some moments: the kernel may show a thread a little longer than those who waited for its end."""
    until = time.monotonic() + _LOOK_FOR_S
    fewest = len(os.listdir(f"/proc/{pid}/task"))
    while time.monotonic() < until:
        fewest = min(fewest, len(os.listdir(f"/proc/{pid}/task")))
    return fewest
