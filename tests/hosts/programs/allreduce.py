# SPDX-License-Identifier: Apache-2.0
"""Print the host, the rank's numbers and a sum over all ranks."""

import socket
import sys

import numpy as np

import horovod.numpy as hvd

hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum)
place = f"{hvd.rank()}/{hvd.size()} {hvd.local_rank()}/{hvd.local_size()} {hvd.cross_rank()}/{hvd.cross_size()}"
# In one write, because mpirun mixes the pieces of several ranks.
sys.stdout.write(f"{socket.gethostname()} {place} {int(total[0])}\n")
