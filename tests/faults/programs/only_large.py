# SPDX-License-Identifier: Apache-2.0
"""Reduce only large tensors until one fails: ranks that are not first on their hosts have links for data only."""

import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

hvd.init()
tensor = np.ones(1 << 20, np.float32)
hvd.allreduce(tensor, name="large")
report("ready")
try:
    while True:
        hvd.allreduce(tensor, name="large")
except hvd.HorovodInternalError as error:
    report("failed", at=time.monotonic(), lost_rank=error.lost_rank, text=str(error))
hvd.shutdown()
