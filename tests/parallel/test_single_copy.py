# SPDX-License-Identifier: Apache-2.0
"""Outputs that other ranks write into directly: right on every path, and ordinary arrays for the caller."""

import gc
import json
import os
import warnings

import numpy as np
from harness.arrays import check_equal, inputs, mine
from harness.worlds import DYNAMIC, SMALL_CHUNKS, World, on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context

STAGED = World("shm2 staged", "a:2", DYNAMIC | SMALL_CHUNKS | {"HOROVOD_SINGLE_COPY_BYTES": "0"})
DEFAULT = World("shm2 default", "a:2")  # chunk sizes and limits as users have them
ROWS = 9001  # in total more bytes than the minimum for direct writes


def single_copies():
    return json.loads(default_context.world.describe())["single_copy_batches"]


def one_host():
    in_memory = hvd.local_size() == hvd.size() and os.environ.get("HOROVOD_SHARED_MEMORY") != "0"
    return in_memory and os.environ.get("HOROVOD_SINGLE_COPY_BYTES") != "0"


def check_used(before, least):
    """Check that outputs were written directly where possible, from the second output of a size on."""
    used = single_copies() - before
    assert used >= least if one_host() else used == 0, used


@on_all_ranks("shm2", "shm4", "tcp2", "hosts3", "hosts4", STAGED, DEFAULT)
def test_allgather_and_alltoall():
    before, digests = single_copies(), []
    for step in range(5):
        arrays = inputs((ROWS + step, 3), "int16", seed=f"gather {step}")
        digests.append(check_equal(hvd.allgather(mine(arrays), name="gather"), np.concatenate(arrays)))
        arrays = inputs((ROWS * hvd.size(), 3), "int16", seed=f"exchange {step}")
        shares = [np.split(array, hvd.size())[hvd.rank()] for array in arrays]
        check_equal(hvd.alltoall(mine(arrays), name="exchange"), np.concatenate(shares))
    check_used(before, 6)
    return digests


@on_all_ranks("shm2", "shm4", STAGED)
def test_ragged_and_empty_pieces():
    me, size = hvd.rank(), hvd.size()
    for step in range(5):
        everyone = [
            inputs((ROWS * (rank + 1) if rank != step % size else 0,), "float32", size=1)[0] for rank in range(size)
        ]
        check_equal(hvd.allgather(everyone[me], name="gather"), np.concatenate(everyone))
        # Rank `to` gets (rank + 1) * 3000 rows of each rank; the last rank gets none.
        splits = [[(0 if to == size - 1 else 3000 * (rank + 1)) for to in range(size)] for rank in range(size)]
        arrays = [np.arange(sum(counts), dtype=np.int64) * 10 + rank for rank, counts in enumerate(splits)]
        output, received = hvd.alltoall(arrays[me], splits=splits[me], name="exchange")
        assert received.tolist() == [counts[me] for counts in splits]
        begins = [sum(counts[:me]) for counts in splits]
        parts = [array[begin : begin + counts[me]] for array, begin, counts in zip(arrays, begins, splits, strict=True)]
        check_equal(output, np.concatenate(parts))


@on_all_ranks("shm2", "shm4")
def test_groups_and_many_at_once():
    before = single_copies()
    for step in range(4):
        tensors = [inputs((ROWS + 100 * index,), "float64", seed=f"{step} {index}") for index in range(4)]
        group = hvd.grouped_allgather([mine(arrays) for arrays in tensors], name="group")
        handles = [hvd.allgather_async(mine(arrays), name=f"many{index}") for index, arrays in enumerate(tensors)]
        for arrays, grouped, handle in zip(tensors, group, handles, strict=True):
            check_equal(grouped, np.concatenate(arrays))
            check_equal(hvd.synchronize(handle), np.concatenate(arrays))
    check_used(before, 1)


@on_all_ranks("shm4")
def test_process_sets_beside_each_other():
    pairs = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])]
    own = pairs[hvd.rank() % 2]
    before = single_copies()
    for step in range(4):
        arrays = inputs((ROWS,), "uint32", seed=step)
        result = hvd.allgather(mine(arrays), name="in a set", process_set=own)
        check_equal(result, np.concatenate([arrays[rank] for rank in own.ranks]))
        check_equal(hvd.allgather(mine(arrays), name="all"), np.concatenate(arrays))
    check_used(before, 4)
    for pair in pairs:
        hvd.remove_process_set(pair)


def gathered(step):
    return hvd.allgather(np.full(ROWS, 10.0 * step + hvd.rank()), name="same")


def check_gathered(array, step):
    np.testing.assert_array_equal(array, np.repeat(10.0 * step + np.arange(hvd.size()), ROWS))


@on_all_ranks("shm2")
def test_results_that_are_kept_stay_as_they_are():
    kept = [gathered(step) for step in range(12)]
    for step in range(0, 12, 2):
        kept[step] = None  # frees its memory for the next result
    later = [gathered(step) for step in range(20, 30)]
    for step in range(1, 12, 2):
        check_gathered(kept[step], step)
    for step, array in enumerate(later, start=20):
        check_gathered(array, step)
    hvd.shutdown()
    hvd.init()
    fresh = [gathered(step) for step in range(4)]
    for step, array in enumerate(later, start=20):
        check_gathered(array, step)
    for step, array in enumerate(fresh):
        check_gathered(array, step)


@on_all_ranks("shm2")
def test_a_forked_child_sees_what_was_there_when_it_was_forked():
    for step in range(4):
        array = gathered(step)
    assert single_copies() > 0
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about a fork in a process with threads
        child = os.fork()
    if child == 0:
        os.read(here, 1)
        right = (array == np.repeat(30.0 + np.arange(2), ROWS)).all()
        array[:] = -1
        os._exit(0 if right else 1)
    array[0] = 77.0
    for step in range(5, 9):
        check_gathered(gathered(step), step)
    assert array[:2].tolist() == [77.0, 30.0]
    del array
    gc.collect()
    for step in range(9, 14):  # would overwrite the memory that the child reads, if it were shared
        check_gathered(gathered(step), step)
    os.write(there, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(here)
    os.close(there)
    hvd.barrier()


@on_all_ranks("shm2")
def test_outputs_outlive_their_world_as_ordinary_memory():
    for step in range(4):
        array = gathered(step)
    assert single_copies() > 0
    expected = array.copy()
    hvd.shutdown()
    assert (array == expected).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        array[:] = -1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == expected).all()
    hvd.init()
    for step in range(4):
        check_gathered(gathered(step), step)
