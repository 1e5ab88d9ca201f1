# SPDX-License-Identifier: Apache-2.0
"""init and shutdown, as many times as asked for; reports what the process holds after a few cycles and after all."""

import os
import sys
import time

import numpy as np
import psutil
from faultkit.reports import report

import horovod.numpy as hvd

WARM_UP = 20


def threads() -> int:
    """The fewest of some moments: the kernel may show a thread a little longer than those who waited for its end."""
    until = time.monotonic() + 0.05
    fewest = len(os.listdir("/proc/self/task"))
    while time.monotonic() < until:
        fewest = min(fewest, len(os.listdir("/proc/self/task")))
    return fewest


def holdings() -> dict[str, int]:
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line or "/dev/shm" in line for line in maps)
    return {
        "threads": threads(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": shared,
        "resident": psutil.Process().memory_info().rss,
    }


before = {}
for cycle in range(int(sys.argv[1])):
    hvd.init()
    hvd.init()
    assert (hvd.allreduce(np.ones(5000), op=hvd.Sum, name=f"cycle{cycle % 3}") == hvd.size()).all()
    hvd.shutdown()
    hvd.shutdown()
    if cycle == WARM_UP:
        before = holdings()
report("done", before=before, after=holdings())
