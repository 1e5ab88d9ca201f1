# SPDX-License-Identifier: Apache-2.0
"""Rank 1 fails by mistake, but its process ends long after rank 0, which fails because it lost rank 1.

The program itself is not elastic.
"""

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
