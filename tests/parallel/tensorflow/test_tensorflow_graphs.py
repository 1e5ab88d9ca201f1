# SPDX-License-Identifier: Apache-2.0
"""Collectives as nodes of graphs: names and shapes, all of them run, and none waits for another."""

import random

import pytest
from harness.worlds import on_all_ranks

MANY = 100


@on_all_ranks("shm2")
def test_names():
    from harness.tensorflow_door import hvd, tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4], name="in/x")
        assert hvd._allreduce(x).op.name == "HorovodAllreduce_in_x_0"
        assert hvd._grouped_allreduce([x, x + 1])[0].op.name == "HorovodGroupedAllreduce_in_x_0_add_0"
        assert hvd.allgather(x).op.name == "HorovodAllgather_in_x_0"
        assert hvd.broadcast(x, 0).op.name == "HorovodBroadcast_in_x_0"
        assert hvd.alltoall(x).op.name == "HorovodAlltoall_in_x_0"
        assert hvd._reducescatter(x).op.name == "HorovodReducescatter_in_x_0"
        with tf.name_scope("scope"):
            assert hvd._allreduce(x, name="mine").op.name == "scope/mine"
            assert hvd.rank_op(name="me").op.name == "scope/me"
        types = {operation.type for operation in graph.get_operations()}
    assert "HorovodRank" in types


@on_all_ranks("shm2")
def test_names_that_ranks_find_each_other_by():
    from harness.tensorflow_door import hvd, np, tf

    me = hvd.rank()

    @tf.function(autograph=False)
    def step(x):
        with tf.name_scope(f"of_rank_{me}"):
            return hvd._allreduce(x, name="reduced", ignore_name_scope=True)

    np.testing.assert_array_equal(step(tf.ones(2)), [2.0] * 2)

    @tf.function(autograph=False)
    def scoped(x):
        with tf.name_scope("scope"):
            return hvd._allreduce(x, name="reduced")

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"tensor 'scope/reduced' has shape \[2\] on rank 0"):
        scoped(tf.ones(2 + me))
    with pytest.raises(tf.errors.FailedPreconditionError, match="tensor 'HorovodAllreduce' has"):
        hvd._allreduce(tf.ones(2 + me))
    with pytest.raises(tf.errors.FailedPreconditionError, match="tensor 'mine' has"):
        hvd._allreduce(tf.ones(2 + me), name="mine")


@on_all_ranks("shm2")
def test_shapes_that_a_graph_knows():
    from harness.tensorflow_door import hvd, tf

    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [4, 3])
        ragged = tf.compat.v1.placeholder(tf.float32, None)
        assert hvd._allreduce(x).shape == [4, 3]
        assert hvd.broadcast(x, 0).shape == [4, 3]
        for result in (hvd.allgather(x), hvd._reducescatter(x), hvd.alltoall(x)):
            assert result.shape.as_list() == [None, 3]
        assert hvd.allgather(ragged).shape.rank is None
        assert [one.shape.as_list() for one in hvd.grouped_allgather([x, x[0]])] == [[None, 3], [None]]
        assert hvd.alltoall(x, [1, 1])[1].shape.as_list() == [None]
        assert hvd.size_op().shape == []
        assert hvd.join().shape == []


def shuffled(hvd, tf):
    """Return the results of many independent allreduces, built in a different order on each rank."""
    order = list(range(MANY))
    random.Random(hvd.rank()).shuffle(order)
    results = {k: hvd._allreduce(tf.fill([k % 7 + 1], float(k * (hvd.rank() + 1))), name=f"t{k}") for k in order}
    return [results[k] for k in range(MANY)]


def check_shuffled(hvd, np, results):
    total = hvd.size() * (hvd.size() + 1) / 2
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(k % 7 + 1, k * total))


@pytest.mark.parametrize("threads", [1, 8])
@on_all_ranks("shm2", "shm4", limit_s=60)
def test_many_in_flight_in_different_orders_on_few_threads(threads):
    from harness.tensorflow_door import hvd, np, session, tf

    with tf.Graph().as_default() as graph:
        results = shuffled(hvd, tf)
        with session(graph, inter_op_parallelism_threads=threads, use_per_session_threads=True) as opened:
            for _ in range(3):
                check_shuffled(hvd, np, opened.run(results))


@on_all_ranks("shm2", limit_s=120)
def test_many_in_flight_in_different_orders_in_functions():
    from harness.tensorflow_door import hvd, np, tf

    flat = tf.function(lambda: shuffled(hvd, tf), autograph=False)
    nested = tf.function(lambda: [one + 0 for one in flat()], autograph=False)
    for step in (flat, nested):
        for _ in range(3):
            check_shuffled(hvd, np, step())

    @tf.function(autograph=False)
    def loop():
        def body(i, total):
            return i + 1, total + tf.add_n([tf.reduce_sum(one) for one in shuffled(hvd, tf)])

        return tf.while_loop(lambda i, total: i < 3, body, [0, 0.0])[1]

    expected = 3 * sum((k % 7 + 1) * k for k in range(MANY)) * hvd.size() * (hvd.size() + 1) / 2
    np.testing.assert_allclose(loop(), expected, rtol=1e-6)


@on_all_ranks("shm2", limit_s=60)
def test_loops_whose_iterations_run_at_once():
    from harness.tensorflow_door import hvd, np, run, tf

    def loop(values):
        return tf.map_fn(lambda i: hvd._allreduce(values[0] * i, name="in_loop"), values[1], parallel_iterations=10)

    for mode in ("function", "graph"):
        result = run(mode, loop, (np.full(3, hvd.rank() + 1.0), np.arange(100.0)))
        np.testing.assert_array_equal(result, np.repeat(np.arange(100.0)[:, None] * 3, 3, axis=1))


@on_all_ranks("shm2")
def test_what_nobody_uses_runs_and_twins_stay_two():
    from harness.tensorflow_door import hvd, np, tf

    me = hvd.rank()

    @tf.function(autograph=False)
    def unused(x):
        if me == 0:
            hvd._allreduce(x, name="unused")
            return x
        return hvd._allreduce(x, name="unused")

    np.testing.assert_array_equal(unused(tf.ones(2)), [1.0 + me] * 2)

    @tf.function(autograph=False)
    def twins():
        one = tf.ones(3)
        first = hvd._allreduce(one, name="twin")
        return first + hvd._allreduce(one, name="twin_1" if me else "twin")

    np.testing.assert_array_equal(twins(), [4.0] * 3)


@on_all_ranks("shm2")
def test_input_is_not_changed():
    from harness.tensorflow_door import hvd, np, tf

    x = tf.Variable(tf.ones(1000))

    @tf.function(autograph=False)
    def step():
        value = x + 0.0
        return value, hvd._allreduce(value), hvd._allreduce(value * 2, name="nobody_else_has_it")

    for _ in range(2):
        value, reduced, other = step()
        assert np.all(value == 1)
        assert np.all(reduced == 2)
        assert np.all(other == 4)
    np.testing.assert_array_equal(x.numpy(), np.ones(1000))
