# SPDX-License-Identifier: Apache-2.0
"""init and shutdown, as many times as asked for; reports what the process holds after a few cycles and after all."""

import os
import sys

import numpy as np
import psutil
from faultkit.reports import report

import horovod.numpy as hvd

WARM_UP = 20


def holdings() -> dict[str, int]:
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line or "/dev/shm" in line for line in maps)
    return {
        "threads": len(os.listdir("/proc/self/task")),
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
