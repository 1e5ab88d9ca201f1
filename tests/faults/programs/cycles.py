# SPDX-License-Identifier: Apache-2.0
"""Call init and shutdown many times, and report what the process holds after a few cycles and after all."""

import sys

import numpy as np
from faultkit.holdings import holdings
from faultkit.reports import report

import horovod.numpy as hvd

WARM_UP = 20

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
