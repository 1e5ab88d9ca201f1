# SPDX-License-Identifier: Apache-2.0
"""Use many threads at once: in init, in collectives in different orders, and in collectives during a shutdown."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

THREADS, CALLS = 8, 40


def reduce_many(thread: int) -> None:
    for call in range(CALLS):
        result = hvd.allreduce(np.full(100 * thread + 1, float(call)), op=hvd.Sum, name=f"thread{thread}.{call % 5}")
        assert (result == call * hvd.size()).all(), (thread, call, result)


def wait_for_nobody(started: threading.Barrier) -> str:
    started.wait()
    try:
        hvd.allreduce(np.ones(3), name=f"nobody{threading.get_ident()}")
    except hvd.HorovodInternalError as error:
        return str(error)
    return "no error"


sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(THREADS) as threads:
    list(threads.map(lambda _: hvd.init(), range(THREADS)))
    order = random.Random(hvd.rank()).sample(range(THREADS), THREADS)
    list(threads.map(reduce_many, order))
    hvd.barrier()
    if hvd.rank() == 0:
        # Each name contains this process's thread number, so that no other rank ever takes part.
        started = threading.Barrier(THREADS)
        waiting = [threads.submit(wait_for_nobody, started) for _ in range(THREADS - 1)]
        started.wait()
        hvd.shutdown()
        report("done", errors=[future.result(timeout=10) for future in waiting])
    else:
        hvd.shutdown()
        report("done", errors=[])
