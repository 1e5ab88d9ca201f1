# SPDX-License-Identifier: Apache-2.0
"""Barrier and join: ranks that wait for one another, and ranks that run out of data before the others."""

import time

import numpy as np
import pytest
from harness.arrays import OPS, check_equal, inputs, mine, reduced
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd


@on_all_ranks()
def test_barrier_holds_everyone_until_the_last_is_there():
    """Compare times of several ranks: CLOCK_MONOTONIC is one clock for all processes of a machine."""
    for _ in range(3):
        arrived = time.monotonic()
        hvd.barrier()
        left = time.monotonic()
        last_arrival = max(hvd.allgather_object(arrived, name="arrived"))
        assert left >= last_arrival


def batches_of(rank):
    """Return the number of batches of a rank. Rank 0 has most, so it joins last."""
    return 1 + 2 * (hvd.size() - 1 - rank)


@pytest.mark.checked_numbers("averages after some ranks joined", against="NumPy")
@on_all_ranks()
def test_uneven_numbers_of_batches():
    for _ in range(2):  # twice, because join can be used again
        for batch in range(batches_of(hvd.rank())):
            present = [rank for rank in range(hvd.size()) if batch < batches_of(rank)]
            result = hvd.allreduce(np.full(300, 1.0 + hvd.rank()), name=f"batch{batch}")
            expected = sum(1.0 + rank for rank in present) * (1.0 / hvd.size())
            np.testing.assert_allclose(result, np.full(300, expected), rtol=1e-15)
        assert hvd.join() == 0
    check_equal(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, float(hvd.size())))
    return hvd.allgather(np.array([hvd.rank()])).tolist()


@on_all_ranks()
def test_unnamed_operations_agree_again_after_a_join():
    for batch in range(batches_of(hvd.rank())):
        hvd.allreduce(np.full(3, float(batch)), op=hvd.Max)
    assert hvd.join() == 0
    return check_equal(hvd.allreduce(np.full(5, hvd.rank()), op=hvd.Sum), np.full(5, sum(range(hvd.size()))))


@pytest.mark.checked_numbers("reductions with a joined rank", against="NumPy")
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "float16"])
@pytest.mark.parametrize("op", OPS)
@on_all_ranks(*SEVERAL)
def test_a_joined_rank_gives_zeros_to_every_operation(op, dtype):
    joined = 1
    arrays = inputs((411,), dtype, seed=op)
    arrays = [array if rank != joined else np.zeros_like(array) for rank, array in enumerate(arrays)]
    if hvd.rank() == joined:
        hvd.join()
        return
    result = hvd.allreduce(mine(arrays), op=OPS[op], name=f"{op} {dtype}")
    expected = reduced(arrays, op)
    if dtype == "int64":
        check_equal(result, expected)
    else:
        tolerance = 1e-2 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    hvd.join()


@on_all_ranks(*SEVERAL)
def test_a_joined_rank_takes_part_in_groups_and_adasum():
    if hvd.rank() == 0:
        last = hvd.join()
    else:
        size = hvd.size() - 1
        results = hvd.grouped_allreduce(
            [np.ones(3), np.ones(400, np.float32), np.ones(2, np.int8)], op=hvd.Sum, name="g"
        )
        assert [result.tolist() for result in results] == [[size] * 3, [size] * 400, [size] * 2]
        result = hvd.allreduce(np.arange(20.0), op=hvd.Adasum, name="adasum")
        np.testing.assert_allclose(result, np.arange(20.0), rtol=1e-12)
        last = hvd.join()
    assert last != 0
    return last


@pytest.mark.parametrize("operation", ["allgather", "broadcast", "alltoall", "reducescatter", "barrier"])
@on_all_ranks(*SEVERAL)
def test_only_allreduce_may_go_on_while_a_rank_has_joined(operation):
    calls = {
        "allgather": lambda: hvd.allgather(np.ones(2), name="x"),
        "broadcast": lambda: hvd.broadcast(np.ones(2), 1, name="x"),
        "alltoall": lambda: hvd.alltoall(np.ones(hvd.size()), name="x"),
        "reducescatter": lambda: hvd.reducescatter(np.ones(2), name="x"),
        "barrier": hvd.barrier,
    }
    if hvd.rank() != 0:
        with pytest.raises(hvd.HorovodMismatchError, match="not supported while rank 0 has joined"):
            calls[operation]()
        result = hvd.allreduce(np.ones(2), op=hvd.Sum, name="goes on")
        check_equal(result, np.full(2, hvd.size() - 1.0))
    hvd.join()
    check_equal(hvd.allgather(np.array([hvd.rank()])), np.arange(hvd.size()))


@on_all_ranks()
def test_all_join_at_once():
    for _ in range(5):
        last = hvd.join()
        assert last in range(hvd.size())
    return last


@on_all_ranks(*SEVERAL)
def test_join_with_work_still_under_way():
    """A rank may join before it has waited for an operation that it submitted."""
    handle = hvd.allreduce_async(np.ones(700), op=hvd.Sum, name="before join")
    assert hvd.join() in range(hvd.size())
    check_equal(hvd.synchronize(handle), np.full(700, float(hvd.size())))
