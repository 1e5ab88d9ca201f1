# SPDX-License-Identifier: Apache-2.0
"""All ranks do 'before'; then rank 1 waits for SIGUSR1 before it does 'gradient' (or does 'other' at once)."""

import signal
import sys

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
hvd.init()
hvd.allreduce(np.ones(3), name="before")
report("ready")
try:
    if hvd.rank() == 1 and sys.argv[1] == "late":
        signal.sigwait([signal.SIGUSR1])
    name = "other" if hvd.rank() == 1 and sys.argv[1] == "different" else "gradient"
    hvd.allreduce(np.ones(3), name=name)
except hvd.HorovodInternalError as error:
    report("failed", text=str(error), lost_rank=error.lost_rank)
    raise
hvd.allreduce(np.ones(3), name="after")
