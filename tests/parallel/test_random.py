# SPDX-License-Identifier: Apache-2.0
"""Random plans of shapes, dtypes, operations and threads: all ranks follow one plan, each in a different order."""

import threading

import numpy as np
import pytest
from harness.arrays import DTYPES, FLOATS, OPS, check_equal, check_reduced, inputs, mine, reduced_by_layout
from harness.worlds import in_worlds
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import horovod.numpy as hvd

WORLDS = ("shm2", "tcp2", "hosts3", "shm4", "hosts4")

examples = settings(
    deadline=None,  # because an example makes a round trip to several processes
    max_examples=20,
    # Do not shrink: a failing example ends the world, so each attempt would start all ranks again.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
    print_blob=True,
)

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple) | st.integers(0, 1500).map(lambda count: (count,))
dtypes = st.sampled_from(DTYPES)
kinds = st.sampled_from(["allreduce", "allreduce_", "allgather", "broadcast", "alltoall", "reducescatter", "group"])
steps = st.fixed_dictionaries(
    {
        "kind": kinds,
        "shape": shapes,
        "dtype": dtypes,
        "op": st.sampled_from(list(OPS)),
        "number": st.integers(0, 1000),
    }
)
seeds = st.integers(0, 2**32 - 1)


def submit(step, name):
    """Start one step of a plan. Return the handle and a function that checks the result."""
    kind, dtype, number = step["kind"], step["dtype"], step["number"]
    op = "Max" if dtype == "bool" else step["op"]
    shape = step["shape"] if step["shape"] or kind.startswith("allreduce") or kind == "broadcast" else (number % 7,)
    size, rank = hvd.size(), hvd.rank()
    arrays = inputs(shape, dtype, seed=name)
    own = mine(arrays)
    if kind == "allreduce":
        return hvd.allreduce_async(own, op=OPS[op], name=name), lambda result: check_reduced(result, arrays, op)
    if kind == "allreduce_":
        return hvd.allreduce_async_(own, op=OPS[op], name=name), lambda result: check_reduced(result, arrays, op)
    if kind == "group":
        both = [inputs((extent,), dtype, seed=f"{name} {extent}") for extent in (number % 5, number)]
        handle = hvd.grouped_allreduce_async([mine(each) for each in both], op=OPS[op], name=name)
        return handle, lambda results: [check_reduced(r, a, op) for r, a in zip(results, both, strict=True)]
    if kind == "broadcast":
        root = number % size
        return hvd.broadcast_async(own, root, name=name), lambda result: check_equal(result, arrays[root])
    if kind == "allgather":
        rows = [(number + other) % (shape[0] + 1) for other in range(size)]
        parts = [array[:count] for array, count in zip(arrays, rows, strict=True)]
        return hvd.allgather_async(parts[rank], name=name), lambda result: check_equal(result, np.concatenate(parts))
    if kind == "reducescatter":
        dtype = "int32" if dtype == "bool" else dtype
        arrays = inputs(shape, dtype, seed=name)
        expected = np.array_split(reduced_by_layout(arrays, "Sum"), size)[rank]
        handle = hvd.reducescatter_async(mine(arrays), op=hvd.Sum, name=name)
        return handle, lambda result: check_equal(result, expected)
    return submit_alltoall(arrays, number, name)


def submit_alltoall(arrays, number, name):
    size, rank = hvd.size(), hvd.rank()
    rows = arrays[0].shape[0]

    def splits_of(sender):
        return [(number + sender + 3 * to) % (rows // size + 1) for to in range(size)]

    def part(sender):
        start = sum(splits_of(sender)[:rank])
        return arrays[sender][start : start + splits_of(sender)[rank]]

    def check(result):
        output, received = result
        assert received.tolist() == [splits_of(sender)[rank] for sender in range(size)]
        check_equal(output, np.concatenate([part(sender) for sender in range(size)]))

    return hvd.alltoall_async(arrays[rank], splits=splits_of(rank), name=name), check


def follow(plan, seed):
    """Submit all steps in this rank's order, and wait for them in another order."""
    random = np.random.default_rng([seed, hvd.rank()])
    under_way = [submit(plan[index], f"step{index}") for index in random.permutation(len(plan))]
    for index in random.permutation(len(under_way)):
        handle, check = under_way[index]
        check(hvd.synchronize(handle))


@pytest.mark.checked_numbers("random programs in which each rank calls in its own order", against="NumPy")
@in_worlds(*WORLDS)
@examples
@given(plan=st.lists(steps, min_size=1, max_size=12), seed=seeds)
def test_every_rank_in_its_own_order(world, plan, seed):
    world.run(follow, limit_s=40, plan=plan, seed=seed)


def follow_in_threads(plans, seed):
    """Run one thread for each plan. All ranks have these threads; each thread has its names and its order."""
    troubles = []

    def work(thread):
        try:
            random = np.random.default_rng([seed, hvd.rank(), thread])
            plan = plans[thread]
            under_way = [submit(plan[index], f"thread{thread} {index}") for index in random.permutation(len(plan))]
            for handle, check in under_way:
                check(hvd.synchronize(handle))
            total = hvd.allreduce(np.ones(100), op=hvd.Sum, name=f"thread{thread} blocking")
            check_equal(total, np.full(100, float(hvd.size())))
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=[thread]) for thread in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]


@in_worlds("shm2", "tcp4", "hosts4")
@examples
@given(plans=st.lists(st.lists(steps, min_size=1, max_size=5), min_size=2, max_size=4), seed=seeds)
def test_several_threads_of_every_rank(world, plans, seed):
    world.run(follow_in_threads, limit_s=40, plans=plans, seed=seed)


def reduce_once(shape, dtype, op, prescale, postscale):
    arrays = [np.asarray(array / array.dtype.type(4)) for array in inputs(shape, dtype)]
    result = hvd.allreduce(mine(arrays), op=OPS[op], prescale_factor=prescale, postscale_factor=postscale)
    return check_reduced(result, arrays, op, prescale, postscale)


@pytest.mark.checked_numbers("allreduce of random shapes, types and factors", against="NumPy")
@in_worlds(*WORLDS)
@examples
@given(
    shape=shapes,
    dtype=st.sampled_from(FLOATS),
    op=st.sampled_from(list(OPS)),
    prescale=st.sampled_from([1.0, 0.5, -1.0, 1 / 3]),
    postscale=st.sampled_from([1.0, 2.0, 0.1]),
)
def test_any_shape_dtype_operation_and_factors(world, shape, dtype, op, prescale, postscale):
    results = world.run(reduce_once, shape=shape, dtype=dtype, op=op, prescale=prescale, postscale=postscale)
    assert len(set(results)) == 1
