# SPDX-License-Identifier: Apache-2.0
"""Where a rank of these examples computes: on the GPU of its local rank, else on its share of the host's cores."""

from __future__ import annotations

import os

import torch

import horovod.torch as hvd


def pin() -> torch.device:
    """Call after hvd.init(). Ranks that each start a thread for every core would only be in each other's way.

    OMP_NUM_THREADS, where it is set, has the last word.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        return torch.device("cuda", hvd.local_rank())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    return torch.device("cpu")
