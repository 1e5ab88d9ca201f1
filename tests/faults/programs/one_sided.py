# SPDX-License-Identifier: Apache-2.0
"""Only the last two ranks wait for a small tensor at once. Then all are idle for longer than a peer may be silent."""

import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

hvd.init()
for _ in range(5):
    if hvd.rank() >= 2:
        hvd.allreduce(np.ones(10), name="small")
    else:
        hvd.synchronize(hvd.allreduce_async(np.ones(10), name="small"))
time.sleep(7)  # a peer may be silent for 4 s, and each rank must get a core in that time
report("done", sum=float(hvd.allreduce(np.ones(1), name="again", op=hvd.Sum)[0]))
hvd.shutdown()
