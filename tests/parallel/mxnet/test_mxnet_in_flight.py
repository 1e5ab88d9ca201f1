# SPDX-License-Identifier: Apache-2.0
"""Arrays that are dropped, overwritten or given other memory while an operation on them is in MXNet's queue.

Rank 0 queues an operation and loses its arrays. Rank 1 calls only after that.
"""

import gc

import numpy as np
import pytest
from harness.arrays import check_equal, inputs, mine, reduced
from harness.mxnet_arrays import array_of, mx, on_mxnet_ranks

import horovod.mxnet as hvd
import horovod.numpy as hvd_numpy

LARGE = 100_000  # number of elements


def overwrite(arrays):
    for array in arrays:
        array[:] = -1


def add_in_place(arrays):
    for array in arrays:
        array += 100


def drop(arrays):
    """Free the arrays, and fill memory of their size with other numbers."""
    arrays.clear()
    gc.collect()
    others = [mx.nd.full((LARGE,), -1) for _ in range(20)]
    for other in others:
        other += 1


LOSSES = {loss.__name__: loss for loss in (overwrite, add_in_place, drop)}
STARTS = {
    "allreduce": lambda arrays: [hvd.allreduce(arrays[0], op=hvd.Sum, name="in flight")],
    "group": lambda arrays: hvd.grouped_allreduce(arrays, op=hvd.Sum, name="in flight"),
    "broadcast": lambda arrays: [hvd.broadcast(arrays[0], 0, name="in flight")],
    "reducescatter": lambda arrays: [hvd.reducescatter(arrays[0], op=hvd.Sum, name="in flight")],
}
REFERENCES = {
    "allreduce": lambda arrays: reduced(arrays, "Sum"),
    "group": lambda arrays: reduced(arrays, "Sum"),
    "broadcast": lambda arrays: arrays[0],
    "reducescatter": lambda arrays: np.split(reduced(arrays, "Sum"), 2)[hvd.rank()],
}


@pytest.mark.checked_numbers("MXNet operations whose arrays are dropped or overwritten meanwhile", against="NumPy")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("loss", LOSSES)
@on_mxnet_ranks("shm2")
def test_arrays_may_be_lost_meanwhile(start, loss):
    everything = [inputs((LARGE,), "float32", f"in flight {index}") for index in range(3 if start == "group" else 1)]
    own = [array_of(mine(arrays)) for arrays in everything]
    if hvd.rank() == 0:
        results = STARTS[start](own)
        LOSSES[loss](own)
        hvd_numpy.barrier()
    else:
        hvd_numpy.barrier()
        results = STARTS[start](own)
    for result, arrays in zip(results, everything, strict=True):
        check_equal(result.asnumpy(), REFERENCES[start](arrays))
