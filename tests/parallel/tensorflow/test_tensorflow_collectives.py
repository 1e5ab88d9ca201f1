# SPDX-License-Identifier: Apache-2.0
"""Every collective on every dtype against NumPy in eager mode, tf.function and v1 graphs, in one program each."""

import pytest
from harness.arrays import DTYPES, OPS, inputs, mine, reduced
from harness.tensorflow_training import in_all_modes
from harness.worlds import on_all_ranks

SHAPES = ((), (0, 3), (7,), (5, 3))
all_modes = pytest.mark.parametrize("mode", ["eager", "function", "graph"])


@pytest.mark.checked_numbers("allreduce in eager mode and in graphs", against="NumPy")
@in_all_modes(limit_s=120)
def test_allreduce(mode):
    from harness.tensorflow_door import check_all, hvd, run, ways

    assert ways.why_not_native is None
    cases = {
        f"{op}_{dtype}_{'x'.join(map(str, shape))}": (op, inputs(shape, dtype, op))
        for dtype in DTYPES
        for op in OPS
        for shape in SHAPES
        if (dtype, op) != ("bool", "Average") and (shape == (7,) or dtype == "float32")
    }

    def reduce_all(tensors):
        return {case: hvd._allreduce(one, op=OPS[cases[case][0]], name=case) for case, one in tensors.items()}

    results = run(mode, reduce_all, {case: mine(values) for case, (_, values) in cases.items()})
    return check_all(results, {case: reduced(values, op) for case, (op, values) in cases.items()})


@in_all_modes(limit_s=60)
def test_groups_of_all_dtypes_with_factors(mode):
    from harness.tensorflow_door import check_all, hvd, run

    arrays = {dtype: inputs((2, 9), dtype, "group") for dtype in DTYPES if dtype != "bool"}

    def reduce_all(tensors):
        reduced = hvd._grouped_allreduce(
            list(tensors.values()), op=hvd.Sum, prescale_factor=0.5, postscale_factor=1 / 3, name="group"
        )
        return dict(zip(tensors, reduced, strict=True))

    results = run(mode, reduce_all, {dtype: mine(values) for dtype, values in arrays.items()})
    return check_all(results, {dtype: reduced(values, "Sum", 0.5, 1 / 3) for dtype, values in arrays.items()})


@pytest.mark.checked_numbers("allgather, broadcast and alltoall in eager mode and in graphs", against="NumPy")
@in_all_modes(limit_s=120)
def test_movements(mode):
    from harness.tensorflow_door import check_all, hvd, np, run

    me, size = hvd.rank(), hvd.size()
    arrays = {dtype: inputs((2 * size, 3), dtype, "move") for dtype in DTYPES}
    # The number of rows differs between ranks.
    own = {dtype: mine(values)[: me + 1] for dtype, values in arrays.items()}

    def move_all(values):
        whole, rows = values
        gathered = hvd.grouped_allgather(list(rows.values()), name="gather")
        return {
            "allgather": {dtype: hvd.allgather(one, name=f"g_{dtype}") for dtype, one in rows.items()},
            "group": dict(zip(rows, gathered, strict=True)),
            "broadcast": {dtype: hvd.broadcast(one, size - 1, name=f"b_{dtype}") for dtype, one in whole.items()},
            "alltoall": {dtype: hvd.alltoall(one, name=f"a_{dtype}") for dtype, one in whole.items()},
        }

    results = run(mode, move_all, ({dtype: mine(values) for dtype, values in arrays.items()}, own))
    everyones = {
        dtype: np.concatenate([one[: rank + 1] for rank, one in enumerate(values)]) for dtype, values in arrays.items()
    }
    digests = [check_all(results[name], everyones) for name in ("allgather", "group")]
    digests.append(check_all(results["broadcast"], {dtype: values[-1] for dtype, values in arrays.items()}))
    mine_of = slice(2 * me, 2 * me + 2)
    received = {dtype: np.concatenate([one[mine_of] for one in values]) for dtype, values in arrays.items()}
    check_all(results["alltoall"], received)
    return digests


@in_all_modes(limit_s=60)
def test_alltoall_with_splits(mode):
    from harness.tensorflow_door import hvd, np, run

    me, size = hvd.rank(), hvd.size()
    splits = [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]
    arrays = [np.arange(2 * size * 3).reshape(-1, 3) + 100 * rank for rank in range(size)]
    output, received = run(
        mode,
        lambda values: hvd.alltoall(values[0], values[1], name="uneven"),
        (arrays[me], np.array(splits[me], np.int32)),
    )
    starts = [sum(one[:me]) for one in splits]
    expected = [array[start : start + one[me]] for array, start, one in zip(arrays, starts, splits, strict=True)]
    np.testing.assert_array_equal(output, np.concatenate(expected))
    np.testing.assert_array_equal(received, [one[me] for one in splits])
    assert received.dtype == np.int32


@pytest.mark.checked_numbers("reducescatter in eager mode and in graphs", against="NumPy")
@in_all_modes(limit_s=60)
def test_reducescatter(mode):
    from harness.tensorflow_door import check_all, hvd, run

    from horovod.common.rules import rows_of

    me, size = hvd.rank(), hvd.size()
    first = sum(rows_of(index, 7, size) for index in range(me))
    rows = slice(first, first + rows_of(me, 7, size))
    arrays = {dtype: inputs((7, 3), dtype, "scatter") for dtype in DTYPES if dtype != "bool"}

    def scatter_all(tensors):
        group = hvd._grouped_reducescatter(list(tensors.values()), op=hvd.Average, name="scatter")
        return {
            "Sum": {dtype: hvd._reducescatter(one, op=hvd.Sum, name=f"s_{dtype}") for dtype, one in tensors.items()},
            "Average": dict(zip(tensors, group, strict=True)),
        }

    results = run(mode, scatter_all, {dtype: mine(values) for dtype, values in arrays.items()})
    for op, result in results.items():
        check_all(result, {dtype: reduced(values, op)[rows] for dtype, values in arrays.items()})


@all_modes
@on_all_ranks("shm2")
def test_broadcast_of_variables_in_place(mode):
    from harness.tensorflow_door import hvd, np, run, session, tf

    me = hvd.rank()

    def variables():
        return [tf.Variable(np.full(3, float(me))), tf.Variable(me + 1), tf.Variable(tf.cast([me], tf.bfloat16))]

    if mode == "graph":
        with tf.Graph().as_default() as graph, session(graph) as opened:
            made = variables()
            broadcast = hvd.broadcast_(made, 1)
            opened.run(tf.compat.v1.global_variables_initializer())
            opened.run(broadcast)
            values = opened.run(made)
    else:
        made = variables()
        run(mode, lambda: hvd.broadcast_(made, 1))
        values = [variable.numpy() for variable in made]
    np.testing.assert_array_equal(values[0], [1.0] * 3)
    assert values[1] == 2
    assert values[2].astype(np.float32) == [1.0]


@in_all_modes()
def test_join_and_questions(mode):
    from harness.sets import process_sets
    from harness.tensorflow_door import hvd, np, run

    me, size = hvd.rank(), hvd.size()
    questions = {"rank": hvd.rank_op, "local_rank": hvd.local_rank_op, "local_size": hvd.local_size_op}
    with process_sets([0]) as (only_first,):
        answers = run(
            mode,
            lambda: {
                "size": hvd.size_op(),
                "set": hvd.size_op(only_first.process_set_id),
                "included": hvd.process_set_included_op(only_first.process_set_id),
                **{name: question() for name, question in questions.items()},
            },
        )
    expected = {"size": size, "set": 1, "included": me == 0, "rank": me, "local_rank": me, "local_size": size}
    assert {name: int(value) for name, value in answers.items()} == expected
    assert all(value.dtype == np.int32 for value in answers.values())
    if me:  # rank 0 joins at once and contributes zeros
        summed = run(mode, lambda values: hvd._allreduce(values[0], name="joined"), (np.ones(2),))
        np.testing.assert_array_equal(summed, [size - 1.0] * 2)
    return int(run(mode, hvd.join)) in range(size)
