# SPDX-License-Identifier: Apache-2.0
"""Check every collective in several sizes, and report how long the slowest round took."""

import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

hvd.init()
size, me = hvd.size(), hvd.rank()
own, everybody = me + 1.0, np.arange(1.0, size + 1)
slowest = 0.0
for number, rows in enumerate((1, 1_000, 100_000)):
    for _ in range(2):  # the second time its description is cached
        began = time.monotonic()
        total = hvd.allreduce(np.full(rows, own), op=hvd.Sum, name=f"allreduce.{number}")
        assert (total == everybody.sum()).all()
        gathered = hvd.allgather(np.full(rows, own), name=f"allgather.{number}")
        assert np.array_equal(gathered, everybody.repeat(rows))
        assert (hvd.broadcast(np.full(rows, own), size - 1, name=f"broadcast.{number}") == size).all()
        exchanged = hvd.alltoall(np.full(rows * size, own), name=f"alltoall.{number}")
        assert np.array_equal(exchanged, everybody.repeat(rows))
        share = hvd.reducescatter(np.full(rows * size, own), op=hvd.Sum, name=f"reducescatter.{number}")
        assert len(share) == rows
        assert (share == everybody.sum()).all()
        slowest = max(slowest, time.monotonic() - began)
hvd.shutdown()
report("finished", slowest=slowest)
