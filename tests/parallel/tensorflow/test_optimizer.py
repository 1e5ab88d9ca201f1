# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tf.compat.v1 in sessions, the hook that broadcasts variables, and wrapping of Keras' optimizers."""

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


def _train(tf, make_optimizer, batches, steps_per_batch=1, **session):
    """Return the variables after training in a session, and the value of global_step."""
    from harness.tensorflow_training import loss_of, make_variables

    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        variables = make_variables(tf)
        x = tf.compat.v1.placeholder(tf.float64, [None, 4])
        y = tf.compat.v1.placeholder(tf.float64, [None])
        train = make_optimizer(tf.compat.v1.train).minimize(loss_of(tf, variables, x, y), global_step=step)
        with tf.compat.v1.train.MonitoredTrainingSession(**session) as run:
            for inputs, targets in batches:
                run.run(train, {x: inputs, y: targets})
            return run.run([variables, step])


@pytest.mark.checked_numbers("training in a session", against="a single process")
@on_tensorflow_ranks("shm2")
def test_k_workers_equal_one_in_a_session():
    from harness.tensorflow_training import check_close, data, door, share

    tf, hvd = door()
    batches = list(zip(*data(), strict=True))
    mine = [tuple(share(part, hvd.rank(), hvd.size()) for part in batch) for batch in batches]
    for make in (lambda train: train.AdamOptimizer(0.05), lambda train: train.MomentumOptimizer(0.05, 0.9)):
        alone, _ = _train(tf, make, batches)
        for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
            wrapped = lambda train, make=make, options=options: hvd.DistributedOptimizer(make(train), **options)  # noqa: E731
            together, step = _train(tf, wrapped, mine, hooks=[hvd.BroadcastGlobalVariablesHook(0)])
            check_close(together, alone)
            assert step == len(batches)


@pytest.mark.checked_numbers("gradient accumulation", against="a single process")
@on_tensorflow_ranks("shm2")
def test_several_backward_passes_for_a_step():
    from harness.tensorflow_training import check_close, data, door, share

    tf, hvd = door()
    batches = list(zip(*data(), strict=True))
    mine = [tuple(share(part, hvd.rank(), hvd.size()) for part in batch) for batch in batches]
    passes = [(x[half], y[half]) for x, y in mine for half in (slice(2), slice(2, 4))]
    alone, _ = _train(tf, lambda train: train.GradientDescentOptimizer(0.1), batches)
    for options, rate in (({"average_aggregated_gradients": True}, 0.1), ({}, 0.05)):
        wrapped, step = _train(
            tf,
            lambda train, options=options, rate=rate: hvd.DistributedOptimizer(
                train.GradientDescentOptimizer(rate), backward_passes_per_step=2, **options
            ),
            passes,
        )
        check_close(wrapped, alone)
        assert step == len(passes)
    with pytest.raises(ValueError, match="only in graphs"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2)


@on_tensorflow_ranks("shm2")
def test_eager_local_and_sparse():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me, size = hvd.rank(), hvd.size()
    local, table = tf.Variable(0.0), tf.Variable(tf.zeros([4, 1]))
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=True)
    optimizer.register_local_var(local)
    optimizer.minimize(lambda: local * float(me + 1) + tf.reduce_sum(tf.gather(table, [me])), var_list=[local, table])
    np.testing.assert_allclose(local, -(me + 1) / size)
    np.testing.assert_allclose(table[:, 0], [-1 / size if row < size else 0 for row in range(4)])
    assert optimizer.get_slot_names() == []

    helper = hvd.LocalGradientAggregationHelper(2, lambda grads, vars: grads, False, False, me, "legacy_optimizer")
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]), dense_shape=tf.constant([4, 1]))
    with pytest.raises(ValueError, match="sparse_as_dense"):
        helper.compute_gradients([slices], [table])


@on_tensorflow_ranks("shm2")
def test_adasum_combines_steps():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me = hvd.rank()
    for passes in (1, 2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variable = tf.compat.v1.get_variable(f"v{passes}", initializer=tf.zeros([2]))
            direction = tf.constant([[1.0, 0.0], [0.0, 2.0]][me])  # orthogonal gradients, so Adasum adds them
            inner = tf.compat.v1.train.GradientDescentOptimizer(0.5)
            optimizer = hvd.DistributedOptimizer(inner, op=hvd.Adasum, backward_passes_per_step=passes)
            train = optimizer.minimize(tf.reduce_sum(variable * direction))
            session.run(tf.compat.v1.global_variables_initializer())
            for number in range(1, 2 * passes + 1):
                session.run(train)
                if number % passes == 0:
                    np.testing.assert_allclose(session.run(variable), [-0.5 * number, -1.0 * number], rtol=1e-6)
            assert "delta_start" in optimizer.get_slot_names()
            assert optimizer.get_slot(variable, "delta_start") is not None
    parallel = tf.Variable(tf.zeros([2]))
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
    optimizer.minimize(lambda: tf.reduce_sum(parallel), var_list=[parallel])
    np.testing.assert_allclose(parallel, [-1.0, -1.0])  # parallel gradients, so Adasum averages them


@on_tensorflow_ranks("shm2")
def test_keras_optimizers_keep_their_options():
    from harness.tensorflow_training import door

    tf, hvd = door()
    for op, expected in ((hvd.Sum, 3.0), (hvd.Average, 1.5)):
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=op, groups=1)
        assert type(optimizer).__name__ == "SGD"
        variable = tf.Variable(0.0)
        optimizer.apply_gradients([(tf.constant(float(hvd.rank() + 1)), variable)])
        np.testing.assert_allclose(variable, -expected)
    with pytest.raises(ValueError, match="v1 optimizers"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Adasum)
    with pytest.raises(ValueError, match="neither"):
        hvd.DistributedOptimizer(object())
    assert hvd.callbacks.MetricAverageCallback is not None


@pytest.mark.checked_numbers(
    "Adam's first updates, each after 8 backward passes, in a session", against="the exact values"
)
@on_tensorflow_ranks("shm2")
def test_bias_correction_counts_updates():
    from harness.tensorflow_training import door

    tf, hvd = door()
    places = []
    with tf.Graph().as_default():
        weight = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.01), backward_passes_per_step=8)
        train = optimizer.minimize(-weight, var_list=[weight])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(3):
                for _ in range(8):
                    session.run(train)
                places.append(session.run(weight))
    np.testing.assert_allclose(places, [0.01, 0.02, 0.03], rtol=1e-5)
