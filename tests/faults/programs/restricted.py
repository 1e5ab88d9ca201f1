# SPDX-License-Identifier: Apache-2.0
"""Run the basic collectives in a process that may not make the system calls named on the command line."""

import json
import os
import sys

from faultkit import seccomp
from faultkit.reports import report

seccomp.refuse(sys.argv[1:])

import numpy as np  # noqa: E402

import horovod.numpy as hvd  # noqa: E402
from horovod.common.context import default_context  # noqa: E402


def is_refused(call: str) -> bool:
    attempt = {"memfd_create": lambda: os.memfd_create("probe"), "pidfd_open": lambda: os.pidfd_open(os.getpid())}
    try:
        os.close(attempt[call]())
    except PermissionError:
        return True
    return False


assert all(is_refused(call) for call in sys.argv[1:])
hvd.init()
rank, size = hvd.rank(), hvd.size()
for elements in (1, 1000, 1_000_000):
    assert (hvd.allreduce(np.full(elements, rank + 1.0), op=hvd.Sum) == size * (size + 1) / 2).all()
    assert (hvd.broadcast(np.full(elements, float(rank)), size - 1) == size - 1).all()
    gathered = hvd.allgather(np.full(elements, rank))
    assert (gathered == np.repeat(np.arange(size), elements)).all()
    received, _ = hvd.alltoall(np.repeat(np.arange(size), elements), splits=[elements] * size)
    assert (received == rank).all()
    assert (hvd.reducescatter(np.ones((size, elements)), op=hvd.Sum) == size).all()
hvd.barrier()
report("done", engine=json.loads(default_context.world.describe()))
hvd.shutdown()
