# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine that are needed to interpret results, and the choice of cores."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np


def cores_for(ranks: int) -> list[int]:
    """Return one core for each rank, physical cores before further hardware threads; none if there are too few."""
    allowed = sorted(os.sched_getaffinity(0))
    if ranks > len(allowed):
        return []
    return sorted(allowed, key=lambda core: (_place_among_siblings(core), core))[:ranks]


def pairs_for(ranks: int) -> list[str]:
    """Return two cores for each rank, because some libraries use a second thread for sockets; or one, or none."""
    both = cores_for(2 * ranks)
    if both:
        return [f"{both[rank]}+{both[ranks + rank]}" for rank in range(ranks)]
    return [str(core) for core in cores_for(ranks)]


def facts() -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_before": round(os.getloadavg()[0], 2),
    }


def kind() -> str:
    """Return a name for machines like this one that can be part of a file name."""
    words = re.sub(r"\(.*?\)|@.*|\bCPU\b", " ", _processor())
    return re.sub(r"[^a-z0-9]+", "-", f"{words} {len(os.sched_getaffinity(0))} cores".lower()).strip("-")


def settings() -> dict[str, str]:
    """Return the engine settings in the benchmark's environment, which the ranks inherit."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("HOROVOD_")}


def _place_among_siblings(core: int) -> int:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    siblings: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return siblings.index(core) if core in siblings else 0


def _processor() -> str:
    """Return the processor's name; ARM kernels report only a part number."""
    parts = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
        if key.strip() == "CPU part":
            return parts.get(value.strip(), f"ARM part {value.strip()}")
    return platform.processor() or "unknown"
