# SPDX-License-Identifier: Apache-2.0
"""The engine counts the collectives that moved a rank's tensors, and their bytes, on every path."""

import json

import numpy as np
from harness.worlds import ALL, on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context


def counted():
    told = json.loads(default_context.world.describe())
    return np.array([told["collectives"], told["bytes"]])


@on_all_ranks(*ALL)
def test_collectives_and_bytes():
    four = np.ones(4, np.float32)
    before = counted()
    for _ in range(3):  # the first call asks the leader, later calls may take the fast path without the leader
        hvd.allreduce(four, name="one name")
    handles = [hvd.allreduce_async(four, name=f"fused {number}") for number in range(5)]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.broadcast(np.ones(100, np.float64), root_rank=0, name="large")
    hvd.allgather(four, name="gathered")
    hvd.barrier()  # counts nothing because it moves no tensor
    assert (counted() - before).tolist() == [3 + 5 + 1 + 1, 16 * (3 + 5 + 1) + 800]
