# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends early: 'exit' ends it normally, 'raise' with a KeyError."""

import sys

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

hvd.init()
report("ready")
for step in range(3):
    hvd.allreduce(np.ones(1000), name="step")
    if hvd.rank() == 1 and step == 1:
        report("leaving")
        if sys.argv[1] == "raise":
            raise KeyError("a mistake of the user")
        sys.exit(0)
