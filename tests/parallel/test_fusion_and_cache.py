# SPDX-License-Identifier: Apache-2.0
"""Repeated tensors, with every setting of fusion and response cache, and tensors that change."""

import itertools

import numpy as np
import pytest
from harness.arrays import check_equal, check_reduced, inputs, mine
from harness.worlds import SMALL_CHUNKS, TCP, World, on_all_ranks

import horovod.numpy as hvd

CAPACITIES = {"off": "0", "tiny": "2", "default": None}
THRESHOLDS = {"off": "0", "tiny": "300", "default": None}


def world_of(cache, fusion):
    settings = {"HOROVOD_CACHE_CAPACITY": CAPACITIES[cache], "HOROVOD_FUSION_THRESHOLD": THRESHOLDS[fusion]}
    given = {name: value for name, value in settings.items() if value is not None}
    # Alternate between transports instead of testing both, because each world has to start all its ranks.
    transport = TCP if (cache == "tiny") == (fusion == "tiny") else {}
    hosts = "a:2" if fusion == "off" else "a:3"
    return World(f"cache-{cache}-fusion-{fusion}", hosts, SMALL_CHUNKS | transport | given)


WORLDS = [world_of(cache, fusion) for cache, fusion in itertools.product(CAPACITIES, THRESHOLDS)]
SIZES = (1, 3, 100, 17, 600, 0, 2, 33)
KINDS = ("float32", "float32", "float64", "int32", "float32", "float32", "float16", "float32")


@on_all_ranks(*WORLDS)
def test_a_training_loop():
    """Each rank submits a step's tensors in a different order; one of them has a dtype that cannot be fused."""
    digests = []
    for step in range(6):
        tensors = [inputs((size,), kind, seed=f"{step} {size}") for size, kind in zip(SIZES, KINDS, strict=True)]
        order = np.random.default_rng([step, hvd.rank()]).permutation(len(tensors))
        handles = {index: hvd.allreduce_async(mine(tensors[index]), name=f"w{index}") for index in order}
        loss = hvd.allgather(np.array([[step, hvd.rank()]]), name="loss")
        check_equal(loss, np.array([[step, rank] for rank in range(hvd.size())]))
        for index, arrays in enumerate(tensors):
            digests.append(check_reduced(hvd.synchronize(handles[index]), arrays, "Average"))
    return digests


@on_all_ranks(*WORLDS)
def test_shapes_types_and_operations_that_change_under_one_name():
    digests = []
    for step in range(4):
        for size, kind, op in itertools.product((4, 400), ("float32", "int32"), ("Sum", "Max")):
            arrays = inputs((size,), kind, seed=f"{step} {size} {op}")
            number = hvd.Sum if op == "Sum" else hvd.Max
            digests.append(check_reduced(hvd.allreduce(mine(arrays), op=number, name="changes"), arrays, op))
            root = (step + size) % hvd.size()
            digests.append(check_equal(hvd.broadcast(mine(arrays), root, name="changes"), arrays[root]))
    return digests


@on_all_ranks(*WORLDS)
def test_rows_that_change_on_one_rank_only():
    """On the other ranks nothing changes, so they report the tensor by its slot in the cache."""
    for step in range(6):
        rows = [2 + (step if rank == 1 else 0) for rank in range(hvd.size())]
        result = hvd.allgather(np.full((rows[hvd.rank()], 2), hvd.rank()), name="gather")
        check_equal(result, np.repeat(np.arange(hvd.size()), rows)[:, None].repeat(2, axis=1))
        splits = [step % 3 if hvd.rank() == 0 else 1] * hvd.size()
        output, received = hvd.alltoall(np.full(sum(splits), hvd.rank()), splits=splits, name="exchange")
        counts = [step % 3] + [1] * (hvd.size() - 1)
        assert received.tolist() == counts
        check_equal(output, np.repeat(np.arange(hvd.size()), counts))


@on_all_ranks(*WORLDS)
def test_more_names_than_the_cache_holds():
    for step in range(3):
        handles = [
            hvd.allreduce_async(np.full(3, index + step), op=hvd.Sum, name=f"many{index}") for index in range(60)
        ]
        for index, handle in enumerate(handles):
            check_equal(hvd.synchronize(handle), np.full(3, (index + step) * hvd.size()))


@on_all_ranks(*WORLDS)
def test_groups_among_single_tensors():
    for step in range(4):
        before = hvd.allreduce_async(np.ones(50), op=hvd.Sum, name="before")
        group = hvd.grouped_allreduce_async([np.full(n, float(step)) for n in (5, 80, 1)], op=hvd.Sum, name="group")
        after = hvd.allreduce_async(np.ones(50), op=hvd.Sum, name="after")
        for result, count in zip(hvd.synchronize(group), (5, 80, 1), strict=True):
            check_equal(result, np.full(count, float(step * hvd.size())))
        for handle in (after, before):
            check_equal(hvd.synchronize(handle), np.full(50, float(hvd.size())))


@on_all_ranks(*WORLDS)
def test_a_mismatch_leaves_the_cache_right():
    for _ in range(2):
        hvd.allreduce(np.ones(6), name="once wrong")
        with pytest.raises(hvd.HorovodMismatchError, match="Mismatched data types"):
            hvd.allreduce(np.ones(6, "f4" if hvd.rank() else "f8"), name="once wrong")
        check_equal(hvd.allreduce(np.full(6, 2.0), name="once wrong"), np.full(6, 2.0))
