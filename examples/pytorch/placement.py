# SPDX-License-Identifier: Apache-2.0
"""The device of a rank in these examples: the GPU of its local rank, or its share of the host's cores."""

from __future__ import annotations

import os

import torch

import horovod.torch as hvd


def pin() -> torch.device:
    """Choose this rank's device and number of threads. Call it after hvd.init().

    Without a limit, each rank starts a thread for every core, and the ranks slow each other down. OMP_NUM_THREADS
    takes precedence if it is set.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        return torch.device("cuda", hvd.local_rank())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    return torch.device("cpu")
