# SPDX-License-Identifier: Apache-2.0
"""Movements of torch tensors (allgather, broadcast, alltoall, point to point), for every dtype."""

import numpy as np
import pytest
import torch
from harness.arrays import inputs
from harness.tensors import TORCH_DTYPES, check_tensor, my_tensor, to_torch
from harness.worlds import on_all_ranks

import horovod.torch as hvd

WORLDS = ("shm2", "shm4")


def ragged(dtype, width=3):
    """Return each rank's rows: none on rank 0, and one more on every further rank."""
    arrays = inputs((8, width), dtype, seed="ragged")
    return [array[:rank] for rank, array in enumerate(arrays)]


@pytest.mark.checked_numbers("allgather of every data type", against="NumPy")
@on_all_ranks(*WORLDS)
def test_allgather_of_every_dtype():
    for dtype in TORCH_DTYPES:
        arrays = ragged(dtype)
        everything = np.concatenate(arrays)
        tensor = my_tensor(arrays)
        results = [hvd.allgather(tensor), hvd.synchronize(hvd.allgather_async(tensor))]
        results += hvd.grouped_allgather([tensor, tensor])
        results += hvd.synchronize(hvd.grouped_allgather_async([tensor, tensor]))
        for result in results:
            check_tensor(result, everything)
    check_tensor(hvd.allgather(torch.empty(0, 4)), torch.empty(0, 4))


@pytest.mark.checked_numbers("broadcast of every data type", against="NumPy")
@on_all_ranks(*WORLDS)
def test_broadcast_of_every_dtype():
    for dtype in TORCH_DTYPES:
        for shape in ((), (0,), (5, 3), (611,)):
            arrays = inputs(shape, dtype, seed=shape)
            root = len(shape) % hvd.size()
            tensor = my_tensor(arrays)
            check_tensor(hvd.broadcast(tensor, root), arrays[root])
            check_tensor(hvd.synchronize(hvd.broadcast_async(tensor, root)), arrays[root])
            check_tensor(tensor, arrays[hvd.rank()])
            check_tensor(hvd.broadcast_(tensor.clone(), root), arrays[root])
            assert hvd.synchronize(hvd.broadcast_async_(tensor, root)) is tensor
            check_tensor(tensor, arrays[root])


@pytest.mark.checked_numbers("alltoall of every data type", against="NumPy")
@on_all_ranks(*WORLDS)
def test_alltoall_of_every_dtype():
    size, rank = hvd.size(), hvd.rank()
    for dtype in TORCH_DTYPES:
        arrays = inputs((2 * size, 3), dtype, seed="alltoall")
        expected = np.concatenate([array[2 * rank : 2 * rank + 2] for array in arrays])
        check_tensor(hvd.alltoall(my_tensor(arrays)), expected)
        output, received = hvd.synchronize(hvd.alltoall_async(my_tensor(arrays)))
        check_tensor(output, expected)
        check_tensor(received, torch.full((size,), 2, dtype=torch.int32))


@on_all_ranks(*WORLDS)
def test_alltoall_with_splits():
    """Rank r sends r + i % 2 rows to rank i, and does not send the rest of its 20 rows."""
    size, rank = hvd.size(), hvd.rank()
    arrays = inputs((20, 2), "float32", seed="splits")
    splits = [[source + target % 2 for target in range(size)] for source in range(size)]
    starts = [[sum(row[:target]) for target in range(size)] for row in splits]
    parts = [array[starts[s][rank] :][: splits[s][rank]] for s, array in enumerate(arrays)]
    counts = [len(part) for part in parts]
    for given in (splits[rank], tuple(splits[rank]), torch.tensor(splits[rank], dtype=torch.int32)):
        output, received = hvd.alltoall(my_tensor(arrays), splits=given)
        check_tensor(output, np.concatenate(parts))
        check_tensor(received, torch.tensor(counts, dtype=torch.int32))


@on_all_ranks(*WORLDS)
def test_bad_splits():
    size = hvd.size()
    for splits in (
        torch.ones(size, dtype=torch.int64),
        torch.ones(size, 1, dtype=torch.int32),
        [1.0] * size,
        ["a"] * size,
        [1] * (size + 1),
        [9] + [0] * (size - 1),
        [-1] * size,
    ):
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(torch.ones(size), splits=splits)


@on_all_ranks(*WORLDS)
def test_point_to_point():
    right, left = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    handle = hvd.send_async(to_torch(np.full(300, hvd.rank(), np.int16)), right, tag=3)
    check_tensor(hvd.recv(torch.empty(300, dtype=torch.int16), left, tag=3), np.full(300, left, np.int16))
    hvd.synchronize(handle)
