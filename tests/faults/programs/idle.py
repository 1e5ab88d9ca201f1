# SPDX-License-Identifier: Apache-2.0
"""Report what hvd.init() changes in a process, and how much processor time an idle engine uses."""

import os
import signal
import time

import numpy as np
from faultkit.holdings import threads
from faultkit.reports import report

import horovod.numpy as hvd

IDLE_S = 2.0
SETTINGS = ("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "NUMEXPR_")


def surroundings() -> dict[str, object]:
    """Return settings of the process that belong to the program and that the engine must not change."""
    return {
        "affinity": {str(thread): sorted(os.sched_getaffinity(int(thread))) for thread in before},
        "scheduler": os.sched_getscheduler(0),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)},
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }


def switches(thread: str) -> int:
    """Return how often a thread has gone to sleep. Involuntary switches do not count, as other processes cause them."""
    with open(f"/proc/self/task/{thread}/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


def cpu_ticks(thread: str) -> int:
    with open(f"/proc/self/task/{thread}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


before = threads()
untouched = surroundings()
hvd.init()
hvd.allreduce(np.ones(1000), name="warm")
hvd.barrier()
added = {thread: name for thread, name in threads().items() if thread not in before}
changed = {name: value for name, value in surroundings().items() if value != untouched[name]}
affinity = {name: sorted(os.sched_getaffinity(int(thread))) for thread, name in added.items()}
start = {thread: (cpu_ticks(thread), switches(thread)) for thread in added}
began = time.monotonic()
cpu = time.process_time()
time.sleep(IDLE_S)
cpu = time.process_time() - cpu
spent = {name: cpu_ticks(thread) - start[thread][0] for thread, name in added.items()}
woken = {name: switches(thread) - start[thread][1] for thread, name in added.items()}
idle_s = time.monotonic() - began  # longer than IDLE_S if this process had to wait for a core
hvd.barrier()
hvd.shutdown()
report(
    "done",
    idle_s=idle_s,
    added=sorted(added.values()),
    changed=changed,
    affinity=affinity,
    whole=sorted(os.sched_getaffinity(0)),
    cpu=cpu,
    ticks=spent,
    woken=woken,
    left=len(threads()) - len(before),
)
