# SPDX-License-Identifier: Apache-2.0
"""All ranks do 'before'; then one rank waits for SIGUSR1 before it does 'gradient' (or does 'other' at once).

The argument chooses the rank and how it waits: 'late' rank 1, 'leader' rank 0, 'native' rank 1 in C code that keeps the
GIL, 'different' rank 1 with 'other'.
"""

import ctypes
import signal
import sys

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
hvd.init()
hvd.allreduce(np.ones(3), name="before")
report("ready")
way = sys.argv[1]
try:
    if hvd.rank() == (0 if way == "leader" else 1):
        if way in ("late", "leader"):
            signal.sigwait([signal.SIGUSR1])
        elif way == "native":
            # PyDLL does not release the GIL. In the set of signals to wait for, bit n - 1 stands for signal n.
            awaited = (ctypes.c_uint64 * 16)(1 << (signal.SIGUSR1 - 1))
            ctypes.PyDLL(None).sigwait(awaited, ctypes.byref(ctypes.c_int()))
    name = "other" if hvd.rank() == 1 and way == "different" else "gradient"
    hvd.allreduce(np.ones(3), name=name)
except hvd.HorovodInternalError as error:
    report("failed", text=str(error), lost_rank=error.lost_rank)
    raise
hvd.allreduce(np.ones(3), name="after")
