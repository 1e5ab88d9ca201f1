# SPDX-License-Identifier: Apache-2.0
"""Print the process id once all ranks are connected, then reduce until a failure. Print SIGUSR1 and SIGUSR2."""

import os
import signal

import numpy as np

import horovod.numpy as hvd

for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: print("got", signal.Signals(number).name, flush=True))
hvd.init()
hvd.barrier()
print("up", os.getpid(), flush=True)
while True:
    hvd.allreduce(np.ones(1000), name="x")
