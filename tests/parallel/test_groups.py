# SPDX-License-Identifier: Apache-2.0
"""Grouped collectives, and the guarantees of handles."""

import threading

import numpy as np
import pytest
from harness.arrays import OPS, check_equal, check_reduced, inputs, mine, reduced_by_layout
from harness.worlds import on_all_ranks

import horovod.numpy as hvd

SHAPES = ((17,), (), (0, 3), (5, 3, 7), (611,))
MIXED = ("float32", "int32", "float16", "float32", "uint8")


def tensors(seed):
    return [inputs(shape, dtype, seed=f"{seed} {shape}") for shape, dtype in zip(SHAPES, MIXED, strict=True)]


@pytest.mark.checked_numbers("grouped allreduce of mixed data types", against="NumPy")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("op", OPS)
@on_all_ranks()
def test_grouped_allreduce_of_mixed_dtypes(op, in_place):
    group = tensors(op)
    mine_of = [mine(arrays) for arrays in group]
    if in_place:
        results = hvd.grouped_allreduce_(mine_of, op=OPS[op])
        assert all(result is array for result, array in zip(results, mine_of, strict=True))
    else:
        results = hvd.grouped_allreduce(mine_of, op=OPS[op])
        for array, arrays in zip(mine_of, group, strict=True):
            check_equal(array, arrays[hvd.rank()])
    assert isinstance(results, list)
    return [check_reduced(result, arrays, op) for result, arrays in zip(results, group, strict=True)]


@pytest.mark.checked_numbers("grouped allgather of different numbers of rows", against="NumPy")
@on_all_ranks()
def test_grouped_allgather_ragged():
    rows = [(hvd.rank() + index) % 3 for index in range(4)]
    group = [np.full((count, 5), 10 * hvd.rank() + index, np.int16) for index, count in enumerate(rows)]
    results = hvd.grouped_allgather(group)
    for index, result in enumerate(results):
        parts = [np.full(((rank + index) % 3, 5), 10 * rank + index, np.int16) for rank in range(hvd.size())]
        check_equal(result, np.concatenate(parts))


@pytest.mark.checked_numbers("grouped reducescatter", against="NumPy")
@on_all_ranks()
def test_grouped_reducescatter():
    group = [inputs((rows, 3), dtype, seed=rows) for rows, dtype in ((7, "float32"), (2, "int64"), (130, "float32"))]
    results = hvd.grouped_reducescatter([mine(arrays) for arrays in group], op=hvd.Sum)
    for arrays, result in zip(group, results, strict=True):
        check_equal(result, np.array_split(reduced_by_layout(arrays, "Sum"), hvd.size())[hvd.rank()])


@on_all_ranks()
def test_groups_under_way_at_once_finish_in_any_order():
    groups = [tensors(seed) for seed in range(3)]
    handles = [
        hvd.grouped_allreduce_async([mine(arrays) for arrays in group], op=hvd.Sum, name=f"group{index}")
        for index, group in enumerate(groups)
    ]
    handles_in_place = [
        hvd.grouped_allreduce_async_([mine(arrays) for arrays in group], op=hvd.Max) for group in groups
    ]
    digests = []
    for index in (2, 0, 1):
        results = hvd.synchronize(handles[index])
        assert isinstance(results, tuple)
        digests += [check_reduced(result, arrays, "Sum") for result, arrays in zip(results, groups[index], strict=True)]
        results = hvd.synchronize(handles_in_place[index])
        digests += [check_reduced(result, arrays, "Max") for result, arrays in zip(results, groups[index], strict=True)]
    return digests


@on_all_ranks()
def test_async_groups_of_every_kind():
    gathered = hvd.grouped_allgather_async([np.array([hvd.rank()]), np.array([[1.5]])])
    scattered = hvd.grouped_reducescatter_async([np.ones((hvd.size(), 2)), np.ones(hvd.size())], op=hvd.Sum)
    ranks, halves = hvd.synchronize(gathered)
    assert ranks.tolist() == list(range(hvd.size()))
    check_equal(halves, np.full((hvd.size(), 1), 1.5))
    one, two = hvd.synchronize(scattered)
    check_equal(one, np.full((1, 2), float(hvd.size())))
    check_equal(two, np.full(1, float(hvd.size())))


@on_all_ranks()
def test_empty_group_is_refused():
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        with pytest.raises(ValueError, match="at least one tensor"):
            call([])


@on_all_ranks()
def test_a_handle_gives_its_result_once():
    handle = hvd.allreduce_async(np.ones(4), op=hvd.Sum)
    assert isinstance(handle, int)
    check_equal(hvd.synchronize(handle), np.full(4, float(hvd.size())))
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(handle)


@on_all_ranks()
def test_poll_turns_true_by_itself():
    """No rank waits for the operation, so the engine's own thread must finish it."""
    handle = hvd.allreduce_async(np.ones(4000), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    check_equal(hvd.synchronize(handle), np.full(4000, float(hvd.size())))


@on_all_ranks()
def test_engine_keeps_the_only_reference_to_an_input():
    handles = [hvd.allreduce_async(np.full(500, index, np.float64), op=hvd.Sum) for index in range(20)]
    trash = [np.full(500, -1.0) for _ in range(50)]  # would reuse the memory of inputs that were freed too early
    for index, handle in enumerate(handles):
        check_equal(hvd.synchronize(handle), np.full(500, float(index * hvd.size())))
    assert len(trash) == 50


@on_all_ranks()
def test_another_thread_may_synchronize():
    handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum)
    results = []
    thread = threading.Thread(target=lambda: results.append(hvd.synchronize(handle)))
    thread.start()
    thread.join()
    check_equal(results[0], np.full(3, float(hvd.size())))
