# SPDX-License-Identifier: Apache-2.0
"""Reduce large tensors until one fails. On SIGUSR1 a rank submits many more, under names that no other rank uses."""

import signal
import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

MANY = 3000  # requests, more than an inbox holds
LARGE = np.ones(1_000_000)


def flood(*_: object) -> None:
    for index in range(MANY):
        hvd.allreduce_async(np.ones(1), name=f"asked for by rank {hvd.rank()} alone, number {index}")
    report("flooded")


signal.signal(signal.SIGUSR1, flood)
hvd.init()
try:
    for step in range(1_000_000):
        hvd.allreduce(LARGE, op=hvd.Sum, name="large")
        if step == 3:
            report("ready")
except hvd.HorovodInternalError as error:
    failed_at = time.monotonic()
    hvd.shutdown()
    report("failed", at=failed_at, text=str(error), lost_rank=error.lost_rank)
    raise
