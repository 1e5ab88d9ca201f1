# SPDX-License-Identifier: Apache-2.0
"""Rank 1 makes a mistake, and ends only when rank 0, which has lost it, has ended long before. Not elastic itself."""

import os
import time

import numpy as np

import horovod.numpy as hvd

hvd.init()
others = hvd.allgather(np.array([os.getpid()]), name="pids")
if hvd.rank() == 1:
    try:
        raise KeyError("a mistake of the user")
    finally:
        hvd.shutdown()
        while os.path.exists(f"/proc/{others[0]}"):
            time.sleep(0.01)
while True:
    hvd.allreduce(np.ones(4), name="gradient")
